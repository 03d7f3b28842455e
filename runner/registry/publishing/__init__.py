"""Redact and check drafts of releases, and send them to a registry."""
