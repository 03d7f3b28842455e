"""Publishing runs and components as releases, fetching, verifying and reproducing them, and their lineage."""
