"""Files that survive a crash: whole or absent, locked by one process, appended to without tearing. Knows no game."""
