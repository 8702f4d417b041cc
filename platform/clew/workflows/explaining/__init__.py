"""Commands that explain predictions by training facts or windows, and their output files."""
