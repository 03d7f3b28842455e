"""Output of the commands: tables, lists, transcripts, progress."""
