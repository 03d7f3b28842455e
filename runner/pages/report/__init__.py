"""Pages of runs: one run, a comparison, a training run."""
