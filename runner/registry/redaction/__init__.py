"""Redaction of releases: private values are replaced, and private text is found."""
