"""Network layers that are shared by several kinds of models."""
