"""Making and checking datasets."""
