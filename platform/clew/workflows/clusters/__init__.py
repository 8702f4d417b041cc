"""Distributes a command's work over the nodes of a Ray cluster."""
