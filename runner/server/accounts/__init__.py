"""Accounts, organizations and tokens."""
