"""The rules and prompts of games: pure functions, no I/O."""
