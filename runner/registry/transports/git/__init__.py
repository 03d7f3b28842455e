"""A registry in a git repository."""
