"""Where models are fine-tuned: openai, command, files and dummy are equals."""
