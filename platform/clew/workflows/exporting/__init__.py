"""Exports models as programs that run without Clew, and embeddings as tables."""
