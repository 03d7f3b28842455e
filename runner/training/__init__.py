"""Rollouts into better models: what is selected, what is trained, iteration by iteration."""
