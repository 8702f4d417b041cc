"""Influence through a whole training run, by reverse-mode differentiation of all its steps."""
