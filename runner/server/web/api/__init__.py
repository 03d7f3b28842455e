"""The JSON API of a server."""
