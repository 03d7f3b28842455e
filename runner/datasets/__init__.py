"""Files into datapoints, and records into fine-tune files."""
