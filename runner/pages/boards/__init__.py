"""Pages of leaderboards."""
