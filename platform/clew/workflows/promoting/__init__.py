"""A run becomes a version of a registered model: checks, challenge, alias."""
