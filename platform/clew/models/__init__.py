"""The networks; they know tensors, not files, losses or runs."""
