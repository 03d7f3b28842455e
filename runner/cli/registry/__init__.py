"""Commands that publish, fetch, verify and reproduce releases."""
