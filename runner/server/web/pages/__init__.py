"""The HTML pages of a server."""
