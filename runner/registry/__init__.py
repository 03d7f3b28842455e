"""Runs and components into releases, and back: publish, get, reproduce, verify, lineage."""
