"""Explanations by training facts and windows, and what they are recorded as."""
