"""Comparison of systems: load scores, match datapoints, test the difference and describe it.

In this package, a *measure* is a `Metric` by which systems are compared, and a *metric* is its name.
"""
