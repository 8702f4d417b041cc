"""Fast influence scores for graph models that score with a query vector."""
