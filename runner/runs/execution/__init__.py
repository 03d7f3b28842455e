"""The parts of a session, which is one process's execution of a run: accounting, sinks, limits and model layers."""
