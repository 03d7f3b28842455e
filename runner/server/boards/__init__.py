"""Boards of public releases, built in a separate process."""
