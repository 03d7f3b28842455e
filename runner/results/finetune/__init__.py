"""Rollouts into fine-tune files, in the formats of those who train."""
