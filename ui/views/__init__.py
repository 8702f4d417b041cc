"""Pages; each module has one `render() -> None`."""
