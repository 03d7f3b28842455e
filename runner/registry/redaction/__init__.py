"""Removal of addresses, hosts, paths and secrets from what is published."""
