"""Foundations that every package uses: errors, exit codes, text, redaction, hashes and files."""
