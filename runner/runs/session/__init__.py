"""One process's execution of a run."""
