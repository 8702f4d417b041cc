"""Image sequences: frames, windows, networks, errors and baselines."""
