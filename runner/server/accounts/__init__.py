"""Accounts, organisations and tokens."""
