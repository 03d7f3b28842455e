"""Measures of monitors: how many attacks are among the games that a verifier suspects most."""
