"""Influence for models that score with a query vector: the fast path."""
