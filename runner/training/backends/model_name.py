"""A trained model's name, as a trainer's file, a provider or the command line gives it: can it be used?"""

from __future__ import annotations

from runner.base.text import escape_controls

MAX_LENGTH = 1024


def name_problem(name: str, base_model: str) -> str | None:
    """Why this cannot be the name of a model that was trained from another; None where it can."""
    if not name:
        return "it is empty"
    if len(name) > MAX_LENGTH:
        return f"it has {len(name)} characters; the maximum is {MAX_LENGTH}"
    if name != name.strip() or len(name.splitlines()) > 1 or "\t" in name:
        return f"it is not a single line without surrounding white space: {escape_controls(name)[:80]!r}"
    if escape_controls(name) != name:
        return f"it has control or invisible characters: {escape_controls(name)[:80]}"
    if name == base_model:
        return f"{name} is the model that was to be trained; what came out needs a name of its own"
    return None
