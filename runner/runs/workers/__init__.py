"""Plays the games of one run in several processes: the main process gives games to workers and replaces dead ones."""
