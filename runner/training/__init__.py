"""Trains models: in each iteration, plays games, selects rollouts, and fine-tunes models on them."""
