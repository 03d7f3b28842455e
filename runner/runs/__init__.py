"""Runs: playing a spec's games, and reading finished runs."""
