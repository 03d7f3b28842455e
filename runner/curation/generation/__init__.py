"""Datasets of right and wrong programs: problems, versions that a model writes, tests, and labels."""
