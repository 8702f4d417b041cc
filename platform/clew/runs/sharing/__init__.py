"""Exports explanations in formats that others can use: an HTML page and a TRAPI message."""
