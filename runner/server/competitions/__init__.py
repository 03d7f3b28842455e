"""Benchmarks whose labels stay with their owner."""
