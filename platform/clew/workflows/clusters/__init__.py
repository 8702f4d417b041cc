"""Runs work on the nodes of a Ray cluster."""
