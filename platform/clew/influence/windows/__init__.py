"""TracIn over training windows of text or frames: exact, or by a search over projections."""
