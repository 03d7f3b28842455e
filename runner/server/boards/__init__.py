"""Boards of what is public, made beside the server."""
