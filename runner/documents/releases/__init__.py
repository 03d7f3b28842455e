"""Releases: what is published under a name, a version and the hash of its bytes; without any run, and any network."""
