"""Pages of runs that are still playing, served on this machine."""
