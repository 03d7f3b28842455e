"""Spec files and overrides into a frozen `Spec`, or all errors with their places."""
