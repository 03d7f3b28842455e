"""Publish runs and components as releases; fetch, verify and reproduce releases; find the lineage of models."""
