"""Which runs and models others came from."""
