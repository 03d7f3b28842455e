"""Calls language models: providers convert requests to completions, and layers around them add retries and limits."""
