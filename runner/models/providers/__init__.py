"""Providers, which answer requests: OpenAI and compatible servers, Anthropic, a batch of calls, and the dummy."""
