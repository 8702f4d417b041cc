"""Explanations in forms that others can use: a page to mail, a message in TRAPI."""
