"""Figures about runs: rows of data, and a chart that shows these rows."""
