"""Transcripts of other tools as the rows of a dataset."""
