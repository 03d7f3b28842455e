"""Builds pages from the records of runs: HTML, charts, and the data that a page's script reads.

This package does not serve pages.
"""
