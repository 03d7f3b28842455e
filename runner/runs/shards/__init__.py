"""The merge of runs that were played in shards."""
