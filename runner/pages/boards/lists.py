"""A leaderboard as its pages have it: lists of rows, one a task, whether of a results folder or of a registry.

Ranks, intervals and marks are the board's own; here they are only put into words and columns.
"""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from runner.pages.boards.marks import Mark, mark_of
from runner.pages.sweeps import SweepPoints, published_sweeps, short_names, sweeps_of
from runner.registry.board.board import PublishedRow, RegistryBoard
from runner.registry.board.wording import describe_omissions, describe_training_games, explain_tiers
from runner.registry.lineage.descriptions import legend
from runner.results.leaderboard.local_board import local_rows, with_stop_reasons, without_board
from runner.results.leaderboard.model import LeaderboardRow, Row, lists_of
from runner.results.leaderboard.results_folder import Results
from runner.results.sweep_points import point_of

_TASK_CHARACTERS = 12


@dataclass(frozen=True)
class BoardRow:
    """One run of a list."""

    values: Mapping[str, Any]
    """By the names of `runner.pages.boards.page.COLUMNS`' fields, for a machine too: numbers and texts."""
    marks: Sequence[Mark]

    def to_json(self) -> dict[str, Any]:
        return {**self.values, "marks": [mark.text for mark in self.marks], "kinds": [one.kind for one in self.marks]}


@dataclass(frozen=True)
class TaskList:
    """The runs of one task, and below them the runs of other tasks that have no list of their own."""

    name: str
    """Of its page: the beginning of the task's hash."""
    benchmark: str
    task: str | None
    selection: str
    rows: Sequence[BoardRow]
    sweeps: Sequence[SweepPoints]

    @property
    def ranked(self) -> list[BoardRow]:
        return [row for row in self.rows if row.values["rank"] is not None]

    @property
    def others(self) -> list[BoardRow]:
        """The runs of this task that have no rank."""
        return [row for row in self.rows if row.values["rank"] is None and row.values["task"] == self.task]

    @property
    def elsewhere(self) -> list[BoardRow]:
        """The runs of other tasks."""
        return [row for row in self.rows if row.values["task"] != self.task]


@dataclass(frozen=True)
class BoardPage:
    """What the pages of a board are made of."""

    where: str
    """The results folder or the registry, as a person names it."""
    is_published: bool
    place: str
    """What a command takes to look there: ` --results DIR`, ` --from WHERE`, or nothing."""
    lists: Sequence[TaskList]
    left_out: Sequence[tuple[str, str]] = ()
    """Releases that were refused, each with why."""
    said: Sequence[str] = ()
    """What is to be said of all of it."""
    commands: Sequence[tuple[str, str]] = field(default=())
    """What each does, and the command."""


def without_folders(where: str, written: str = "") -> str:
    """A place as a page for others names it: as it was `written`, if that is relative; else by its last name alone."""
    scheme = next((one for one in ("file:", "git:file://", "git:") if where.startswith(one)), "")
    if scheme == "file:" and _is_relative(written.removeprefix("file:")):
        return written
    path = Path(where.removeprefix(scheme))
    if where.startswith("hf:") or (scheme == "git:" and not path.is_absolute()) or _is_relative(str(path)):
        return where
    return f"{scheme.removesuffix('file://')}{path.resolve().name}"


def _is_relative(path: str) -> bool:
    return path != "" and not Path(path).is_absolute() and ".." not in Path(path).parts


def local_board(results: Results, named: str | None = None) -> BoardPage:
    """The board of a results folder; one that is not there, or has no rows, has no lists.

    `named` is what the page is to call the folder, where that is not its path.

    Raises:
        LeaderboardError: it is damaged, or a newer nip-run wrote it.
    """
    rows = with_stop_reasons(local_rows(results), results)
    lists = lists_of(rows)
    names = _names(lists)
    tasks = _task_lists(lists, names, _local, lambda listed: sweeps_of(listed, results))
    where = named or str(results.path)
    at = "" if where == "results" else f" --results {shlex.quote(where)}"
    said = () if rows else (f"There are no rows in {where}{without_board(results)}.",)
    commands = [
        ("The same rows in a terminal, or for a machine", f"nip-run leaderboard{at} --json"),
        ("Compare two runs, game by game", f"nip-run compare RUN RUN{at}"),
        (
            "Play a run again, as a run of its own",
            f"nip-run {shlex.quote(where)}/runs/RUN/spec.yaml --again",
        ),
        ("Make the board again from its runs", f"nip-run leaderboard --rebuild{at}"),
    ]
    return BoardPage(where, False, at, tasks, said=said, commands=commands)


def published_board(
    board: RegistryBoard, named: str | None = None, *, name_of: Callable[[PublishedRow], str] | None = None
) -> BoardPage:
    """The board of a registry.

    `named` is what the page is to call its place, where that is not its address; `name_of` says what the page of a list
    is called, by any row of it: it is unique.
    """
    board = replace(board, where=named or board.where)
    lists = lists_of(board.rows)
    names = _names(lists) if name_of is None else [name_of(listed[0]) for listed in lists]
    tasks = _task_lists(lists, names, _published, published_sweeps)
    place = f" --from {shlex.quote(board.where)}"
    hidden = [line for line in describe_omissions(board) if not line.startswith("left out: ")]
    if not board.rows:
        said = [f"No benchmark is published in {board.where}.", *hidden]
        return BoardPage(board.where, True, place, tasks, board.left_out, said)
    meaning = legend(mark for row in board.rows for mark in row.marks)
    commands = [
        ("The same rows in a terminal, or for a machine", f"nip-run leaderboard{place} --json"),
        ("A release as a folder, every file checked", f"nip-run get REF{place}"),
        ("Its numbers again from its transcripts, or all of it played anew", f"nip-run reproduce REF{place}"),
        ("Every hash and record of it", f"nip-run verify REF{place}"),
        ("Two releases that `get` put into folders, game by game", "nip-run compare FOLDER FOLDER"),
    ]
    said = [explain_tiers(board), *([meaning] if meaning else []), *hidden]
    return BoardPage(board.where, True, place, tasks, board.left_out, said, commands)


def _names(lists: Sequence[Sequence[LeaderboardRow]]) -> list[str]:
    """The name of each list's page: two benchmarks may have one task."""
    seen: Counter[str] = Counter()
    names = []
    for listed in lists:
        name = (listed[0].task or "unknown")[:_TASK_CHARACTERS]
        seen[name] += 1
        names.append(name if seen[name] == 1 else f"{name}-{seen[name]}")
    return names


def _task_lists(
    lists: Sequence[Sequence[Row]],
    names: Sequence[str],
    row_of: Callable[[Row, str | None], BoardRow],
    sweeps: Callable[[Sequence[Row]], Sequence[SweepPoints]],
) -> list[TaskList]:
    tasks = []
    for name, listed in zip(names, lists, strict=True):
        first, rows = listed[0], [row_of(*both) for both in zip(listed, _short_points(listed), strict=True)]
        tasks.append(TaskList(name, str(first.benchmark), first.task, first.selection, rows, sweeps(listed)))
    return tasks


_SAME = (
    "rank", "rank_last", "accuracy", "ci_low", "ci_high", "stderr", "n", "clusters", "protocol", "models", "cost_usd",
    "name", "seed", "point", "per_datapoint", "failures", "no_decision", "status", "version", "spec_sha256",
    "dataset_sha256", "game_sha256", "task",
)  # fmt: skip
"""What a page's row has as the board has it."""


def _local(row: LeaderboardRow, short_point: str | None) -> BoardRow:
    return BoardRow({"run": row.run_id, "release": None, **_shared(row, short_point)}, _marks(row, row.shared_note))


def _published(row: PublishedRow, short_point: str | None) -> BoardRow:
    own = {
        "run": row.release.removeprefix("run/"),
        "release": row.release,
        **_shared(row, short_point),
        "trained_on": describe_training_games(row.effort) or None,
        **{name: getattr(row, name) for name in ("tier", "numbers", "owner", "signed", "release_sha256")},
    }
    return BoardRow(own, _marks(row, *row.marks))


def _marks(row: LeaderboardRow, *more: str | None) -> list[Mark]:
    stopped = row.stopped and f"stopped once decided: {row.stopped}"
    return [mark_of(text) for text in (row.reason, stopped, *more) if text]


def _shared(row: LeaderboardRow, short_point: str | None) -> dict[str, Any]:
    times = {"started_at": row.started_at, "finished_at": row.finished_at}
    return {
        "run_id": row.run_id,
        "short_point": short_point,
        **{name: getattr(row, name) for name in _SAME},
        "outcomes": row.outcomes,
        **{name: None if time is None else f"{time:%Y-%m-%d %H:%M}" for name, time in times.items()},
    }


def _short_points(rows: Sequence[LeaderboardRow]) -> list[str | None]:
    """What a sweep sets in each row, its keys by as much of their ends as tells them apart."""
    points: list[dict[str, Any] | str | None] = []
    for row in rows:
        try:
            points.append(point_of(row.point) if row.point else None)
        except ValueError:
            points.append(str(row.point))  # a stranger's, as it stands
    names = short_names({key for point in points if isinstance(point, dict) for key in point})
    return [
        " ".join(f"{names[key]}={_told(value)}" for key, value in point.items()) if isinstance(point, dict) else point
        for point in points
    ]


def _told(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
