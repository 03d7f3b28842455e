"""The DuckDB leaderboard: rows, ranks, queries and sweep tables."""
