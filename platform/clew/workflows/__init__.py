"""One use case per file; the only folder where subjects, training, influence and runs meet."""
