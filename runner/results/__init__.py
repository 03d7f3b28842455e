"""What a run leaves on disk, and the numbers that follow from it."""
