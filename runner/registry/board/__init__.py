"""The leaderboard of a registry."""
