"""Exports finished runs to the formats of other tools: results, logs and transcripts."""
