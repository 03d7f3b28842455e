"""Commands that prepare, check and play specs."""
