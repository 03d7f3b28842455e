"""Figures of runs: rows of data, and the chart that shows them."""
