"""Estimates, intervals and tests: numbers in, numbers out, with no knowledge of games, runs or files."""
