"""The fine-tuning backends: openai, command, files and dummy."""
