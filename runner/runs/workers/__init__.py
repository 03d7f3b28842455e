"""Plays the games of one run in several processes: a writer leases games to workers, and replaces workers that die."""
