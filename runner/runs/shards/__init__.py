"""Runs that are played in shards, and their merge."""
