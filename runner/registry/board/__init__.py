"""The leaderboard of what a registry holds."""
