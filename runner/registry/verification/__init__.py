"""Checks that numbers, records and releases follow from their journals."""
