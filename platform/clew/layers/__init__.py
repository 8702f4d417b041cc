"""Parts of networks that more than one subject uses."""
