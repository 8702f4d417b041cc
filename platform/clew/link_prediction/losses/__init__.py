"""Losses over all entities, with and without keeping all scores."""
