"""Tables of entities whose rows are spread over the processes of a run.

Every process holds some rows, their optimizer state and their part of the loss; queries and small
gradients travel, rows of the table only where they are looked up.
"""
