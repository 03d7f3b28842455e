"""What went wrong in a run's games, for a person: at the end of the run, and whenever it is shown."""

from __future__ import annotations

from runner.cli.terminal.output import columns_of_output, note, say, warn, wrapped
from runner.cli.terminal.wrapping import wrapped as wrapped_on_stdout
from runner.runs.finished.problems import GameProblem


def warn_of(trouble: GameProblem, show: str) -> None:
    """What went wrong, an example, what to do and what to look at, on stderr."""
    warn(wrapped(f"warning: {trouble.message}"))
    for line in _details(trouble):
        note(wrapped(f"  {line}", "    "))
    note(f"  look: {show}")


def say_trouble(trouble: GameProblem, show: str) -> None:
    """The same on stdout, for who asked for it."""
    for text, style in ((f"trouble: {trouble.message}", "33"), *((line, "") for line in _details(trouble))):
        for line in wrapped_on_stdout(text, columns_of_output(), "" if style else "  "):
            say(line, style)
    say(f"  look: {show}")


def _details(trouble: GameProblem) -> list[str]:
    named = (("example", trouble.example), ("advice", trouble.advice))
    return [f"{what}: {text}" for what, text in named if text]
