"""Uploads: receiving, checking and publishing releases."""
