"""Requests into completions: providers that are equals, and the layers around them."""
