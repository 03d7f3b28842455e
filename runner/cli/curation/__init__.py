"""Commands for datasets of programs."""
