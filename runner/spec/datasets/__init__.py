"""Datasets: files, settings, datapoints."""
