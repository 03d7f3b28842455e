"""The names of runs and of their spec files. This module imports nothing, since most commands need it."""

SAVED_SPEC = "spec.yaml"
"""File name of the resolved spec in a run's folder."""

MAX_RUN_ID_LENGTH = 120
RUN_ID_PATTERN = f"^[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_RUN_ID_LENGTH - 1}}}$"
"""Pattern of a run's id, which is a folder name and may be longer than the name it starts with."""
