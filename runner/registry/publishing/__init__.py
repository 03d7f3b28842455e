"""Checks and uploads of releases."""
