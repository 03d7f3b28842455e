"""The lineage of runs and models: which other runs and models they came from."""
