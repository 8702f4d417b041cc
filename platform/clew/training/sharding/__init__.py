"""Entity tables whose rows are sharded over the processes of a run.

Every process holds some rows, their optimizer state and their part of the loss. Processes exchange
queries and small gradients, and rows of the table only if they are looked up.
"""
