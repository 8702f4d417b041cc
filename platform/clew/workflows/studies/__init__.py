"""Runs several variants of a configuration, and judges claims about them."""
