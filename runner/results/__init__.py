"""Results of runs: tables, metrics, leaderboards, comparisons and fine-tuning files."""
