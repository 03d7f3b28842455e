"""The content of a leaderboard's pages: a list of rows for each task, from a results folder or a registry.

A task is a benchmark with one set of rows, so only runs of the same task are ranked together. Ranks, intervals and
marks (remarks about a row) come from the board; this module only formats them. `runner.pages.boards.page` renders the
lists, and the registry server stores them (`runner.server.boards.builder`).
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from runner.pages.boards.marks import Mark, mark_of
from runner.pages.sweeps import SweepPoints, format_value, published_sweeps, short_names, sweeps_of
from runner.registry.board.board import PublishedRow, RegistryBoard
from runner.registry.board.wording import describe_omissions, describe_training_games, explain_tiers
from runner.registry.lineage.descriptions import explain_marks
from runner.results.leaderboard.local_board import local_rows, missing_board_hint, with_stop_reasons
from runner.results.leaderboard.model import LeaderboardRow, Row, lists_of
from runner.results.leaderboard.results_folder import Results
from runner.results.sweep_points import parse_point

_TASK_CHARACTERS = 12
"""Number of characters of a task's hash in the name of its page."""


@dataclass(frozen=True)
class BoardRow:
    """A run in a list."""

    values: Mapping[str, Any]
    """Numbers and texts by field name, as in the JSON of the page."""
    marks: Sequence[Mark]

    def to_json(self) -> dict[str, Any]:
        return {**self.values, "marks": [mark.text for mark in self.marks], "kinds": [mark.kind for mark in self.marks]}


@dataclass(frozen=True)
class TaskList:
    """The list of a task: its ranked and unranked runs, and the runs of other tasks without a ranked run."""

    name: str
    """The name of the list's page: the start of the task's hash."""
    benchmark: str
    task: str | None
    selection: str
    rows: Sequence[BoardRow]
    sweeps: Sequence[SweepPoints]

    @property
    def ranked(self) -> list[BoardRow]:
        return [row for row in self.rows if row.values["rank"] is not None]

    @property
    def unranked(self) -> list[BoardRow]:
        """The runs of this task that have no rank."""
        return [row for row in self.rows if row.values["rank"] is None and row.values["task"] == self.task]

    @property
    def other_tasks(self) -> list[BoardRow]:
        """The runs of other tasks."""
        return [row for row in self.rows if row.values["task"] != self.task]


@dataclass(frozen=True)
class BoardPage:
    """The content of a board's pages."""

    where: str
    """The display name of the results folder or registry."""
    is_published: bool
    option: str
    """The option that makes a command use this board: ` --results DIR`, ` --from WHERE`, or ""."""
    lists: Sequence[TaskList]
    refused: Sequence[tuple[str, str]] = ()
    """Refused releases, each with the reason."""
    notes: Sequence[str] = ()
    """Notes on the board as a whole."""
    commands: Sequence[tuple[str, str]] = field(default=())
    """Commands, each after a description of what it does."""


def without_folders(where: str, written: str = "") -> str:
    """Return the display name of a location, without the names of folders on this machine.

    A relative path stays as the user has `written` it; of an absolute path, only the last part remains.
    """
    scheme = next((prefix for prefix in ("file:", "git:file://", "git:") if where.startswith(prefix)), "")
    if scheme == "file:" and _is_relative(written.removeprefix("file:")):
        return written
    path = Path(where.removeprefix(scheme))
    if where.startswith("hf:") or (scheme == "git:" and not path.is_absolute()) or _is_relative(str(path)):
        return where
    return f"{scheme.removesuffix('file://')}{path.resolve().name}"


def _is_relative(path: str) -> bool:
    return path != "" and not Path(path).is_absolute() and ".." not in Path(path).parts


def local_board(results: Results, display_name: str | None = None) -> BoardPage:
    """Return the board of a results folder. If the folder is missing or empty, the board has no lists.

    `display_name` replaces the path of the folder on the page.

    Raises:
        LeaderboardError: the board is damaged, or a newer version of nip-run wrote it.
    """
    rows = with_stop_reasons(local_rows(results), results)
    lists = lists_of(rows)
    names = _names(lists)
    tasks = _task_lists(lists, names, _local_row, lambda listed: sweeps_of(listed, results))
    where = display_name or str(results.path)
    option = "" if where == "results" else f" --results {shlex.quote(where)}"
    notes = () if rows else (f"There are no rows in {where}{missing_board_hint(results)}.",)
    commands = [
        ("Print these rows as JSON", f"nip-run leaderboard{option} --json"),
        ("Compare two runs, game by game", f"nip-run compare RUN RUN{option}"),
        ("Play a run again as a new run", f"nip-run {shlex.quote(where)}/runs/RUN/spec.yaml --again"),
        ("Rebuild the board from the runs", f"nip-run leaderboard --rebuild{option}"),
    ]
    return BoardPage(where, False, option, tasks, notes=notes, commands=commands)


def published_board(
    board: RegistryBoard, display_name: str | None = None, *, name_of: Callable[[PublishedRow], str] | None = None
) -> BoardPage:
    """Return the board of a registry.

    `display_name` replaces the address of the registry on the page. `name_of` returns the unique page name of a row's
    list.
    """
    board = replace(board, where=display_name or board.where)
    lists = lists_of(board.rows)
    names = _names(lists) if name_of is None else [name_of(listed[0]) for listed in lists]
    tasks = _task_lists(lists, names, _published_row, published_sweeps)
    place = f" --from {shlex.quote(board.where)}"
    hidden = [line for line in describe_omissions(board) if not line.startswith("left out: ")]
    if not board.rows:
        notes = [f"{board.where} has no published benchmark run; publish one with nip-run publish.", *hidden]
        return BoardPage(board.where, True, place, tasks, board.left_out, notes)
    meaning = explain_marks(mark for row in board.rows for mark in row.marks)
    commands = [
        ("Print these rows as JSON", f"nip-run leaderboard{place} --json"),
        ("Download a release and check every file", f"nip-run get REF{place}"),
        ("Recompute a run's numbers from its transcripts", f"nip-run reproduce REF{place}"),
        ("Check every hash and record", f"nip-run verify REF{place}"),
        ("Compare two downloaded releases, game by game", "nip-run compare FOLDER FOLDER"),
    ]
    notes = [explain_tiers(board), *([meaning] if meaning else []), *hidden]
    return BoardPage(board.where, True, place, tasks, board.left_out, notes, commands)


def _names(lists: Sequence[Sequence[LeaderboardRow]]) -> list[str]:
    """Return a unique page name for each list. Two benchmarks may have the same task, so its hash is not enough."""
    counts: Counter[str] = Counter()
    names = []
    for listed in lists:
        name = (listed[0].task or "unknown")[:_TASK_CHARACTERS]
        counts[name] += 1
        names.append(name if counts[name] == 1 else f"{name}-{counts[name]}")
    return names


def _task_lists(
    lists: Sequence[Sequence[Row]],
    names: Sequence[str],
    row_of: Callable[[Row, str | None], BoardRow],
    sweeps: Callable[[Sequence[Row]], Sequence[SweepPoints]],
) -> list[TaskList]:
    tasks = []
    for name, listed in zip(names, lists, strict=True):
        first = listed[0]
        rows = [row_of(row, point) for row, point in zip(listed, _short_points(listed), strict=True)]
        tasks.append(TaskList(name, str(first.benchmark), first.task, first.selection, rows, sweeps(listed)))
    return tasks


_COPIED_FIELDS = (
    "rank", "rank_last", "accuracy", "ci_low", "ci_high", "stderr", "n", "clusters", "protocol", "models", "cost_usd",
    "name", "seed", "point", "per_datapoint", "failures", "lost", "undecided", "no_decision",
    "status", "version", "spec_sha256",
    "dataset_sha256", "game_sha256", "task",
)  # fmt: skip
"""Fields of a board's row that the page's row copies unchanged."""


def _local_row(row: LeaderboardRow, short_point: str | None) -> BoardRow:
    values = {"run": row.run_id, "release": None, **_common_values(row, short_point)}
    return BoardRow(values, _marks(row, row.shared_note))


def _published_row(row: PublishedRow, short_point: str | None) -> BoardRow:
    values = {
        "run": row.release.removeprefix("run/"),
        "release": row.release,
        **_common_values(row, short_point),
        "trained_on": describe_training_games(row.effort) or None,
        **{name: getattr(row, name) for name in ("tier", "numbers", "owner", "signed", "release_sha256")},
    }
    return BoardRow(values, _marks(row, *row.marks))


def _marks(row: LeaderboardRow, *texts: str | None) -> list[Mark]:
    stop_note = row.stopped and f"stopped once decided: {row.stopped}"
    return [mark_of(text) for text in (row.reason, stop_note, *texts) if text]


def _common_values(row: LeaderboardRow, short_point: str | None) -> dict[str, object]:
    times = {"started_at": row.started_at, "finished_at": row.finished_at}
    return {
        "run_id": row.run_id,
        "short_point": short_point,
        **{name: getattr(row, name) for name in _COPIED_FIELDS},
        "outcomes": row.outcomes,
        **{name: None if time is None else f"{time:%Y-%m-%d %H:%M}" for name, time in times.items()},
    }


def _short_points(rows: Sequence[LeaderboardRow]) -> list[str | None]:
    """Return the values that a sweep sets in each row as text, with the shortest unique suffix of each key."""
    points: list[dict[str, Any] | str | None] = []
    for row in rows:
        try:
            points.append(parse_point(row.point) if row.point else None)
        except ValueError:
            points.append(str(row.point))  # a published row may have an invalid point
    names = short_names({key for point in points if isinstance(point, dict) for key in point})

    def short(point: Mapping[str, object]) -> str:
        return " ".join(f"{names[key]}={format_value(value)}" for key, value in point.items())

    return [short(point) if isinstance(point, dict) else point for point in points]
