"""Print the problems of a run's games: at the end of the run, and in `nip-run show`."""

from __future__ import annotations

from runner.cli.terminal.output import columns_of_output, note, say, warn, wrap_for_stderr
from runner.cli.terminal.wrapping import wrap_lines as wrapped_on_stdout
from runner.runs.finished.problems import GameProblem


def print_problem_warning(trouble: GameProblem, show: str) -> None:
    """Print a problem on stderr with an example, advice, and `show`, the command that shows a rollout with it."""
    warn(wrap_for_stderr(f"warning: {trouble.message}"))
    for line in _details(trouble):
        note(wrap_for_stderr(f"  {line}", "    "))
    note(f"  show it: {show}")


def print_problem(trouble: GameProblem, show: str) -> None:
    """Print a problem on stdout, for `nip-run show`."""
    for text, style in ((f"trouble: {trouble.message}", "33"), *((line, "") for line in _details(trouble))):
        for line in wrapped_on_stdout(text, columns_of_output(), "" if style else "  "):
            say(line, style)
    say(f"  show it: {show}")


def _details(trouble: GameProblem) -> list[str]:
    details = (("example", trouble.example), ("advice", trouble.advice))
    return [f"{label}: {text}" for label, text in details if text]
