"""Calls to language models: from a request to a completion, with providers and the layers around them."""
