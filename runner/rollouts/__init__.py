"""A spec into jobs, jobs into games that are played, games into rollouts."""
