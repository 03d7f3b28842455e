"""Tasks of runs: the datapoints as the verifier sees them, with labels and groups.

Runs are comparable if their task is the same: the same datapoints, from any file and in any order. Of a datapoint's
columns, only the columns of the verifier's templates are part of the task, so provers may see more. In version 1 of
tasks (before nip-run 0.2), the columns of all agents were part of it. Ids are part of the task, because leaderboards
pair the rollouts of two runs by the ids of their datapoints. Competitions are an exception: their submissions must have
all columns of the competition (see `runner.server.competitions.rows`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from runner.base.hashing import tagged_hash
from runner.base.storage.safe_files import open_to_read, read_bounded
from runner.base.text import comma_join
from runner.documents.dataclass_schema import from_plain
from runner.game.prompts.sandbox import scan
from runner.game.prompts.templates import MAX_BYTES, SUFFIX, stored_name
from runner.game.protocols.ballot import ANSWERS
from runner.game.protocols.checkers import CheckerSettings
from runner.results.folder import RunFolder
from runner.results.metric_definitions import RANKING_METRIC
from runner.results.saved_spec import saved_value

if TYPE_CHECKING:
    from runner.spec.assembly import Spec
    from runner.spec.datasets.datapoint import Datapoint

MAX_LINE = 64 << 20
"""Maximum size of a datapoint in a file, in bytes."""
WITHHELD = "withheld.jsonl"
"""The file with the datapoints of a published run whose rows are not published: a `PlayedDatapoint` in each line."""


@dataclass(frozen=True)
class PlayedDatapoint:
    """A datapoint of a run as leaderboards store it."""

    id: str
    group: str
    label: int | None
    content_sha256: str
    """The hash of the columns that the verifier's templates use."""
    columns: Mapping[str, Any]
    """The columns except id and label, including columns that no template uses, since a query may slice by them."""
    group_is_hash: bool = False
    """Whether `group` is a hash, because the name of the group is not published."""
    all_columns_sha256: str | None = None
    """The hash of the columns that the templates of any agent use; None if the verifier's templates use the same."""
    right: tuple[int, ...] | None = None
    """The indices of the right answers in the column `answers`; None if labels are 0 and 1, or hidden."""

    @property
    def sha256(self) -> str:
        """The hash of the whole datapoint, equal to `Datapoint.content_hash`."""
        content: dict[str, Any] = {"id": self.id, "label": self.label, "columns": self.columns}
        if self.right is not None:
            content["right"] = self.right
        return tagged_hash("datapoint", content)

    @property
    def shown_label(self) -> int | str | None:
        """The label, or the texts of the right answers."""
        if self.right is None:
            return self.label
        return " / ".join(str(self.columns[ANSWERS][index]) for index in self.right)

    @property
    def digest(self) -> str:
        """The datapoint's hash within the task, which needs neither the group's name nor the columns."""
        return self._digest(self.content_sha256)

    @property
    def earlier_digest(self) -> str:
        """The digest in version 1 of tasks."""
        return self._digest(self.all_columns_sha256 or self.content_sha256)

    def _digest(self, content: str) -> str:
        right = [] if self.right is None else [self.right]
        return tagged_hash("played", [self.id, self.group_sha256 or self.id, self.label, content, *right])

    @property
    def group_sha256(self) -> str | None:
        """The hash of the group's name; None for a datapoint without a group."""
        if self.group == self.id:
            return None
        return self.group if self.group_is_hash else tagged_hash("group", self.group)


def played_datapoints(folder: RunFolder, group_by: str | None) -> Iterator[PlayedDatapoint]:
    """Yield the datapoints of a run from its saved inputs. `group_by` is the column with the group.

    Raises:
        OSError: the inputs cannot be read.
        ValueError: the inputs are damaged.
    """
    used_by_verifier, used_by_any = verifier_variables(folder), template_variables(folder)
    path = folder.path / "inputs" / "dataset.jsonl"
    is_withheld = not path.is_file() and (folder.path / WITHHELD).is_file()
    with open_to_read(folder.path / WITHHELD if is_withheld else path) as file:
        while line := file.readline(MAX_LINE):
            try:
                row = orjson.loads(line)
                if is_withheld:
                    yield PlayedDatapoint(**row)
                else:
                    yield _parse_datapoint(row, used_by_verifier, used_by_any, group_by)
            except (KeyError, TypeError) as error:
                raise ValueError("not a datapoint") from error


def _parse_datapoint(
    row: Mapping[str, object], used_by_verifier: frozenset[str], used_by_any: frozenset[str], group_by: str | None
) -> PlayedDatapoint:
    id_ = str(row["id"])
    group = id_ if group_by is None else str(row[group_by])
    columns = {name: value for name, value in row.items() if name not in ("id", "label")}
    content, all_content = (
        {name: columns[name] for name in sorted(columns) if name in names} for names in (used_by_verifier, used_by_any)
    )
    label = row["label"]
    right: tuple[int, ...] | None = None
    if isinstance(label, list):
        right = tuple(int(number) - 1 for number in label)
        label = None
    if label not in (0, 1, None):
        raise ValueError(f"a label is 0 or 1, not {label!r}")
    return PlayedDatapoint(
        id_, group, None if label is None else int(label), tagged_hash("content", content), columns,
        all_columns_sha256=None if content.keys() == all_content.keys() else tagged_hash("content", all_content),
        right=right,
    )  # fmt: skip


def template_variables(folder: RunFolder, agents: Collection[str] | None = None) -> frozenset[str]:
    """Return the variables that the templates of these agents use; None means all agents.

    Variables that nip-run defines, such as the round, are included.

    Raises:
        OSError: a template cannot be read.
        ValueError: a template is not UTF-8.
    """
    prompts = folder.path / "inputs" / "prompts"
    paths = [path for path in sorted(prompts.iterdir()) if path.suffix == SUFFIX]
    if agents is not None:
        paths = [path for path in paths if path.name.partition(".")[0] in agents]
    sources = (read_bounded(path, MAX_BYTES) for path in paths)
    return frozenset(name for source in sources for name in scan(source.decode("utf-8-sig")).variables)


def verifier_variables(folder: RunFolder) -> frozenset[str]:
    """Return the variables that the verifier's templates use. Raises the same errors as `template_variables`."""
    return template_variables(folder, [row["agent"] for row in folder.manifest().agents if row["role"] == "verifier"])


def verifier_columns(spec: Spec) -> frozenset[str]:
    """Return the columns of a spec's dataset that the verifier's templates use."""
    templates = spec.prompts.variables.items()
    used = (names for template, names in templates if template.partition(".")[0] in spec.protocol.verifier_names)
    return frozenset().union(*used) & frozenset(spec.dataset.columns)


@dataclass(frozen=True)
class Task:
    """The properties of a run that must be equal in two runs to compare them."""

    dataset_content_sha256: str
    """The hash of the datapoints, with labels and groups. Their order does not matter."""
    template_columns: str
    """The columns that the verifier's templates use, by name."""
    earlier_content_sha256: str = field(compare=False)
    """The value of `dataset_content_sha256` in version 1 of tasks."""

    @classmethod
    def of_points(cls, folder: RunFolder, points: Iterable[PlayedDatapoint]) -> Task:
        """Return the task of a run that played these datapoints. Raises the same errors as `template_variables`."""
        columns: set[str] = set()
        checker = checker_digest(folder)
        digests: list[tuple[str, str]] = [] if checker is None else [(checker, checker)]
        for point in points:
            columns.update(point.columns)
            digests.append((point.digest, point.earlier_digest))
        return cls(
            tagged_hash("dataset_content", sorted(digest for digest, _ in digests)),
            ", ".join(sorted(verifier_variables(folder) & columns)),
            tagged_hash("dataset_content", sorted(digest for _, digest in digests)),
        )

    @classmethod
    def of_run(cls, folder: RunFolder, group_by: str | None) -> Task:
        """Return the task of a run. Raises the same errors as `played_datapoints`."""
        return cls.of_points(folder, played_datapoints(folder, group_by))

    @property
    def sha256(self) -> str:
        """The id of the task."""
        return _task_id(self.dataset_content_sha256)

    @property
    def earlier_sha256(self) -> str | None:
        """The id in version 1 of tasks, if it differs."""
        earlier_id = _task_id(self.earlier_content_sha256)
        return None if earlier_id == self.sha256 else earlier_id


def checker_digest(folder: RunFolder) -> str | None:
    """Return a hash of the rule that labels the answers of provers; None if the dataset has the labels.

    Raises:
        OSError: the saved spec or the function cannot be read.
    """
    settings = saved_value(folder, "dataset", "checker")
    if settings is None:
        return None
    checker = from_plain(CheckerSettings, settings)
    source = None
    if checker.source_name is not None:
        source = read_bounded(folder.path / "inputs" / "prompts" / stored_name(checker.source_name), MAX_BYTES).decode()
    return tagged_hash("checker", [settings, source])


def _task_id(content_sha256: str) -> str:
    return tagged_hash("task", {"dataset": content_sha256, "metric": RANKING_METRIC})


def describe_task_difference(first: RunFolder, second: RunFolder, group_by: tuple[str | None, str | None]) -> str:
    """Return how the task of the second run differs from that of the first. `group_by` has each run's column of groups.

    Raises the same errors as `played_datapoints`.
    """
    runs = (first, second)
    points = [{point.id: point for point in played_datapoints(*run)} for run in zip(runs, group_by, strict=True)]
    columns = [
        verifier_variables(run) & {name for point in points_of_run.values() for name in point.columns}
        for run, points_of_run in zip(runs, points, strict=True)
    ]
    return _describe_difference(points, columns)


def describe_spec_difference(first: Spec, second: Spec) -> str:
    """Return how the task of the second spec differs from that of the first, as `describe_task_difference` does."""
    columns = [verifier_columns(spec) for spec in (first, second)]
    points = [
        {point.id: _planned_datapoint(point, names) for point in spec.dataset.datapoints}
        for spec, names in zip((first, second), columns, strict=True)
    ]
    return _describe_difference(points, columns)


def _planned_datapoint(point: Datapoint, used_columns: frozenset[str]) -> PlayedDatapoint:
    content = {name: value for name, value in point.columns.items() if name in used_columns}
    right = None if point.answers is None else point.answers.right
    content_hash = tagged_hash("content", content)
    return PlayedDatapoint(point.id, point.group, point.label, content_hash, point.columns, right=right)


def _describe_difference(points: Sequence[Mapping[str, PlayedDatapoint]], columns: Sequence[AbstractSet[str]]) -> str:
    """Return how two tasks differ, given the datapoints by id and the columns that the templates use, of each task."""
    if columns[0] != columns[1]:
        names = [comma_join(sorted(columns_of_task)) or "none" for columns_of_task in columns]
        return f"its verifier's templates use other columns ({names[1]} instead of {names[0]})"
    return _describe_points_difference(points[0], points[1], columns[0])


def _describe_points_difference(
    first: Mapping[str, PlayedDatapoint], second: Mapping[str, PlayedDatapoint], columns: AbstractSet[str]
) -> str:
    """Return for each kind of difference the number of datapoints of the second run that have it, with an example."""
    new_ids: dict[tuple[int | str | None, str], list[str]] = {}
    for point in second.values():
        if point.id not in first:
            new_ids.setdefault((point.shown_label, point.content_sha256), []).append(point.id)
    examples: dict[str, list[str]] = {}
    for point in first.values():
        other, same_content = second.get(point.id), new_ids.get((point.shown_label, point.content_sha256))
        if other is None and same_content:
            examples.setdefault("with another id", []).append(f"{same_content.pop(0)!r} instead of {point.id!r}")
        elif other is None:
            examples.setdefault("missing", []).append(repr(point.id))
        elif point.digest != other.digest:
            names = [
                name for name in ("label", "right", "group_sha256") if getattr(point, name) != getattr(other, name)
            ]
            if point.content_sha256 != other.content_sha256:
                # Datapoints whose rows are not published have no columns.
                shared_names = sorted(columns & point.columns.keys() & other.columns.keys())
                names += [name for name in shared_names if point.columns[name] != other.columns[name]] or ["content"]
            kind = comma_join(name.removesuffix("_sha256") for name in names)
            examples.setdefault(f"with another {kind}", []).append(repr(point.id))
    if added := [repr(id_) for ids in new_ids.values() for id_ in ids]:
        examples["additional"] = added
    listed = comma_join(f"{len(ids)} {kind} (such as {ids[0]})" for kind, ids in examples.items())
    return f"datapoints differ: {listed}" if listed else "nothing differs"
