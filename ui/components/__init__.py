"""Charts, tables and filters: they show data and return what a person chooses."""
