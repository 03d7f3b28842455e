"""Who asks: accounts, organisations, tokens."""
