"""Providers, which answer requests: OpenAI and compatible servers, Anthropic, batches of calls, and `dummy`."""
