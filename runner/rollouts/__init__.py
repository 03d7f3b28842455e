"""Turns a spec into jobs, plays each job as a game or tree, and records the games as rollouts."""
