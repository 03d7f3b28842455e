"""Protocols, prompts, datasets, agents and other parts of specs as releases."""
