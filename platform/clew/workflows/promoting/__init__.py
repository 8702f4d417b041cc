"""Promotes a run's model to a registered version that has the champion alias, after checks."""
