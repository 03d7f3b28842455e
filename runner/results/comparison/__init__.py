"""Is one system better than another: runs into scores by datapoint, matched, tested, and said in words."""
