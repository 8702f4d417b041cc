"""Models as programs that need no Clew, and embeddings as tables."""
