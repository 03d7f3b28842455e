"""What commands print: tables, lists, transcripts, progress."""
