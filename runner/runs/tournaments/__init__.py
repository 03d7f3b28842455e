"""Tournaments: runs whose parts are the games of pairings, and whose results are ratings of the players."""
