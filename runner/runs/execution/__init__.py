"""The parts of a session: accounting, sinks, limits, and the layers around the models."""
