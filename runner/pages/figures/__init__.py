"""Figures of runs: each the rows that it shows, and the chart that is made of them."""
