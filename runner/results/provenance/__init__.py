"""Provenance of runs: packages, git state, and hashes of their inputs."""
