"""Publish and install components: protocols, prompts, datasets, agents and other parts of specs as releases."""
