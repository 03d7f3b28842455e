"""Starts and resumes runs, and plays them in this process."""
