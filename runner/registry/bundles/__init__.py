"""The files of a run's release."""
