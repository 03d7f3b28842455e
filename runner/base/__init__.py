"""What every package uses: errors, exit codes, text, redaction, hashes and asyncio helpers."""
