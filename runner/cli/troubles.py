"""What went wrong in a run's games, for a person: at the end of the run, and whenever it is shown."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from runner.cli.output import columns_of_output, note, say, warn, wrapped
from runner.cli.wrap import wrapped as wrapped_on_stdout
from runner.results.folder import RunFolder
from runner.runs.troubles import Trouble, troubles_of
from runner.text import counted


class Found(NamedTuple):
    """A trouble, and the run whose games had it."""

    run_id: str
    trouble: Trouble


def found_in(folder: RunFolder, parts: Iterable[RunFolder]) -> list[Found]:
    """What went wrong in a run; of the parts of a training run each kind once, with its first part.

    Raises:
        RunError: a file of them is damaged.
    """
    found = [Found(folder.run_id, trouble) for trouble in troubles_of(folder)]
    of_kind: dict[str, list[Found]] = {}
    for part in parts:
        for trouble in troubles_of(part):
            of_kind.setdefault(trouble.kind, []).append(Found(part.run_id, trouble))
    for (run_id, trouble), *others in of_kind.values():
        more = f" (so in {counted(len(others), 'part')} more)" if others else ""
        found.append(Found(run_id, replace(trouble, message=f"{run_id}: {trouble.message}{more}")))
    return found


def warn_of(trouble: Trouble, show: str) -> None:
    """What went wrong, an example, what to do and what to look at, on stderr."""
    warn(wrapped(f"warning: {trouble.message}"))
    for line in _details(trouble):
        note(wrapped(f"  {line}", "    "))
    note(f"  look: {show}")


def say_trouble(trouble: Trouble, show: str) -> None:
    """The same on stdout, for who asked for it."""
    for text, style in ((f"trouble: {trouble.message}", "33"), *((line, "") for line in _details(trouble))):
        for line in wrapped_on_stdout(text, columns_of_output(), "" if style else "  "):
            say(line, style)
    say(f"  look: {show}")


def _details(trouble: Trouble) -> list[str]:
    named = (("example", trouble.example), ("advice", trouble.advice))
    return [f"{what}: {text}" for what, text in named if text]
