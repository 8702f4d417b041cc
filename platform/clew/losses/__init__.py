"""Losses as sums with their counts: each fast path beside its plain reference."""
