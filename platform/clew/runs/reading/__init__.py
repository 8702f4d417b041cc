"""Reads the tracking store for the dashboard and the command line, without importing torch."""
