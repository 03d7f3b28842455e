"""Playing runs in this process."""
