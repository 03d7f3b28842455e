"""Merges the shards of a run into one run."""
