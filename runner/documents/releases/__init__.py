"""Releases: files that are published under a name, a version and a hash. This package uses no runs and no network."""
