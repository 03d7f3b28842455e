"""The time limit of every wait in the tests. No test may use it as an assertion about speed."""

HANG_SECONDS = 300.0
"""After this time a wait fails because something hangs. It is far above what anything takes on a busy machine."""
