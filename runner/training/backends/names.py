"""Names of models that somebody else wrote: a trainer's file, a provider, the command line."""

from __future__ import annotations

from runner.text import escape_controls

LONGEST = 1024


def wrong_with_name(name: str, base_model: str) -> str | None:
    """Why this cannot be the name of a model that was trained from another; None where it can."""
    if not name:
        return "it is empty"
    if len(name) > LONGEST:
        return f"it has {len(name)} characters, and {LONGEST} is the most"
    if name != name.strip() or len(name.splitlines()) > 1 or "\t" in name:
        return f"it is no single line without white space around it: {escape_controls(name)[:80]!r}"
    if escape_controls(name) != name:
        return f"it has control or invisible characters: {escape_controls(name)[:80]}"
    if name == base_model:
        return f"{name} is the model that was to be trained; what came out needs a name of its own"
    return None
