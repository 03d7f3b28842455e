"""Print the problems of a run's games: at the end of the run, and in `nip-run show`."""

from __future__ import annotations

from runner.cli.terminal.output import note, say, say_wrapped, warn, wrap_for_stderr
from runner.runs.finished.stored_problems import GameProblem


def print_problem_warning(problem: GameProblem, show_command: str) -> None:
    """Print a problem on stderr with an example, advice, and the command that shows a rollout with this problem."""
    warn(wrap_for_stderr(f"warning: {problem.message}"))
    for line in _detail_lines(problem):
        note(wrap_for_stderr(f"  {line}", "    "))
    note(f"  show it: {show_command}")


def print_problem(problem: GameProblem, show_command: str) -> None:
    """Print a problem on stdout, for `nip-run show`."""
    say_wrapped(f"warning: {problem.message}", style="33")
    for line in _detail_lines(problem):
        say_wrapped(line, "  ")
    say(f"  show it: {show_command}")


def _detail_lines(problem: GameProblem) -> list[str]:
    details = (("example", problem.example), ("advice", problem.advice))
    return [f"{label}: {text}" for label, text in details if text]
