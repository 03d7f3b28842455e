"""What stands around a provider: the journal, the cache, the budget, the limits, the retries."""
