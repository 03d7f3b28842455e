"""Questions about the transcripts of finished runs, answered by models, functions and people."""
