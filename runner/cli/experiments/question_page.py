"""The page of `nip-run run` and `nip-run rejudge` where people answer for model groups with `provider: human`."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

from runner.base.text import comma_join, counted
from runner.cli.arguments import port
from runner.cli.terminal.output import note
from runner.cli.terminal.page_file import open_in_browser, page_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runner.base.question_queue import QuestionQueue
    from runner.cli.terminal.progress import Display
    from runner.rollouts.plan import Plan


def add_page_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for the page where people answer."""
    parser.add_argument(
        "--port", type=port, default=0, metavar="N", help="port of the page where people answer; default: free"
    )
    parser.add_argument(
        "--no-open", dest="open", action="store_false", help="print the address of this page, but open no browser"
    )


class CommandQuestions:
    """The questions of a command's runs, and the page where people answer. The first run with people opens it."""

    def __init__(self, args: argparse.Namespace, plans: Sequence[Plan], display: Display) -> None:
        self._args, self._plans, self._display = args, plans, display
        self._queue: QuestionQueue | None = None
        self._exit_stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._exit_stack.close()

    def open_page(self) -> QuestionQueue:
        """Open the page at the first call, and return its questions.

        Raises:
            UsageError: the port is in use or privileged.
            RunError: the server cannot listen.
        """
        if self._queue is not None:
            return self._queue
        from runner.base.question_queue import QuestionQueue
        from runner.pages.live.question_page import serve_questions

        queue = QuestionQueue()
        server = self._exit_stack.enter_context(serve_questions(queue, self._args.port))
        queue.page = self._exit_stack.enter_context(page_file(server))
        self._queue = queue
        with self._display.paused():
            note(f"people answer at {queue.page} (open this file in a browser on this machine; only you can read it)")
            if not self._args.quiet:
                note(f"in total: {describe_people(self._plans)}")
        if self._args.open:
            open_in_browser(queue.page)
        return queue


def describe_people(plans: Sequence[Plan]) -> str | None:
    """Return a sentence about the answers that people must give; None if no people are asked."""
    from runner.rollouts.estimate import estimate_costs, people_per_game, sum_by_group

    estimates = sum_by_group(
        estimate
        for plan in plans
        if any(settings.traits.asks_people for settings in plan.spec.experiment.models.values())
        for estimate in estimate_costs(plan)
        if plan.spec.experiment.models[estimate.group].traits.asks_people
    )
    if not estimates:
        return None
    low, high = (sum(estimate.calls[end] for estimate in estimates) for end in (0, 1))
    answers = counted(high, "answer") if low == high else f"{low:,} to {high:,} answers"
    people = max(map(people_per_game, plans))
    different = "" if people == 1 else f"; each game needs {people} different people"
    return f"people must give {answers} ({comma_join(estimate.group for estimate in estimates)}){different}"
