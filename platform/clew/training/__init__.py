"""One trainer for every task: it knows batches, losses and trackers, nothing of graphs or text."""
