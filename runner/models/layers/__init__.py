"""Layers around a provider: the journal, the cache, the budget, the limits and the retries."""
