"""Parts of a session (one process's execution of a run): accounting, output files, limits and model layers."""
