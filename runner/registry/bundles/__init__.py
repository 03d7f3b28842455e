"""Build and check the files of a run's release."""
