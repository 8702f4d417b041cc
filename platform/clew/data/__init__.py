"""Reads data sets and hands out batches in a reproducible order."""
