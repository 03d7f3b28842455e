"""Redact releases: replace private values in structured data, and find private text in all files."""
