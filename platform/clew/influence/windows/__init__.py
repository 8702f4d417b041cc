"""TracIn by training windows of text or frames: exactly, or by a search among projections."""
