"""Checks of a spec beyond its schema, section by section."""
