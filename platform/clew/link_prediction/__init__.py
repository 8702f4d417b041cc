"""Link prediction: graphs, models, losses, ranking and predictions."""
