"""Runs of several variants side by side, and verdicts on what they claim."""
