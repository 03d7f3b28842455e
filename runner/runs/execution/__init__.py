"""The parts of a session: accounting, sinks, limits, the journal's layers."""
