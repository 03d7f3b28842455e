"""Sample sizes, forecasts of duration, and runs that are derived from other runs."""
