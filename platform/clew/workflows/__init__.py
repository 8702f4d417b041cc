"""One use case a file; the only folder where subjects, training, influence and runs meet."""
