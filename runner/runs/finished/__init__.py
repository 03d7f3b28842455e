"""Reads finished runs: their results, games, problems and saved specs."""
