"""Prompt templates and what an agent may see, into the chat messages that its model gets."""
