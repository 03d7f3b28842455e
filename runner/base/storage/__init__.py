"""Files that survive a crash: complete or absent, locked by one process, appended to without torn records."""
