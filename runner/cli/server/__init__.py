"""Commands that run a registry server."""
