"""Quality measures: filtered ranking, perplexity, regression errors."""
