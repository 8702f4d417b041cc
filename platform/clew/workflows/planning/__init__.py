"""What a training will need of memory and time, before it starts."""
