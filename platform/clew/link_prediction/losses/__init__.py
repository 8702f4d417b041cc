"""Losses over all entities, with and without their matrix."""
