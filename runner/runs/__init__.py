"""A spec into a finished run, and a finished run into its rollouts again."""
