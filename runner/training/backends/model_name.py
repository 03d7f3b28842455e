"""Checks the name of a trained model, which comes from a trainer's file, a provider or the command line."""

from __future__ import annotations

from runner.base.text import escape_controls
from runner.training.backends.interface import FineTuneJob

MAX_LENGTH = 1024


def name_problem(name: str, job: FineTuneJob) -> str | None:
    """Return why a name is not valid for the model that a job trains; None if the name is valid."""
    if not name:
        return "the name is empty"
    if len(name) > MAX_LENGTH:
        return f"the name has {len(name)} characters; the maximum is {MAX_LENGTH}"
    if name != name.strip() or len(name.splitlines()) > 1 or "\t" in name:
        return f"the name is not a single line without surrounding white space: {escape_controls(name)[:80]!r}"
    if escape_controls(name) != name:
        return f"the name has control or invisible characters: {escape_controls(name)[:80]}"
    if name == job.base_model:
        return f"{name} is the base model; the trained model needs a different name"
    if name in job.earlier_models:
        return f"{name} is an earlier model of {job.group}; the trained model needs a new name"
    if name in job.other_models:
        return f"{name} is a model of another group at the same server; each group's models need names of their own"
    return None
