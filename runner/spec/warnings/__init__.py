"""Warnings about a valid spec."""
