"""A task binds data, model and loss; it is all that trainer, evaluator and influence engine see."""
