"""Dataset files into datapoints."""
