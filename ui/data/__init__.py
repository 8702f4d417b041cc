"""Cached access to the tracking store; the only place that imports `clew.runs.reading`."""
