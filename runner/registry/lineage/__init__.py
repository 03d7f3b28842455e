"""The origins of runs and models: which others they came from."""
