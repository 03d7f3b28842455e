"""Comparison of systems: load scores, match datapoints, test the difference and describe it.

In this package, a *measure* is a `Metric` that systems are compared by, and a *metric* is its name.
"""
