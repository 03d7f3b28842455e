"""Commands that make and check datasets."""
