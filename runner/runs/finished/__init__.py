"""Reading finished runs."""
