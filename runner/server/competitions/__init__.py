"""Competitions: benchmarks whose labels only the owner and the server have."""
