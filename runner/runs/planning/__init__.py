"""Sample sizes, forecasts of duration, and runs planned from others."""
