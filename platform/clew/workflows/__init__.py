"""One use case a file; the only room where data, training, tracking and evaluation meet."""
