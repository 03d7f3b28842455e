"""The transport for registries in git repositories."""
