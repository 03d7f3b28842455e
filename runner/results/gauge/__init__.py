"""Gauge studies of judges: readings of finished runs, their noise and its sources, and stored results."""
