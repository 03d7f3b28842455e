"""Checks for systems that are not independent samples, such as a replay and its source, or two judges of one debate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

from runner.base.errors import RunError, UsageError
from runner.base.storage.duckdb_connections import read_only_table
from runner.base.text import comma_join
from runner.results.comparison.systems import System
from runner.results.folder import RunFolder
from runner.results.manifest import Manifest
from runner.results.saved_spec import saved_value
from runner.results.table_columns import COLUMNS
from runner.results.tasks import played_datapoints
from runner.rollouts.rollout import Outcome
from runner.statistics.agreement import agreement


def refuse_overlap(systems: Sequence[System]) -> None:
    """Check that no run belongs to two of these systems.

    Raises:
        UsageError: a run belongs to two systems.
    """
    first_systems: dict[object, System] = {}
    for system in systems:
        for folder in system.runs:
            if first_systems.setdefault(folder.path.resolve(), system) is not system:
                raise UsageError(
                    f"{folder.run_id} is in two of the compared systems; a run cannot be compared with itself"
                )


def shared_answers_remark(base: System, other: System) -> str | None:
    """Return a remark if one system repeats the answers of the other, as a replay does; None otherwise."""
    shared = _answer_sources(base) & _answer_sources(other)
    if not shared:
        return None
    replays = comma_join(
        sorted(
            folder.run_id
            for system in (base, other)
            for folder, manifest in zip(system.runs, system.manifests, strict=True)
            if manifest.is_whole_replay and _answer_source(folder, manifest) in shared
        )
    )
    if replays:
        return f"{replays}: a replay, the same answers and no new sample"
    starts = [{(manifest.run_id, manifest.started_at) for manifest in system.manifests} for system in (base, other)]
    if copied := comma_join(sorted(run_id for run_id, _ in starts[0] & starts[1])):
        return f"{copied}: a copy, the same answers and no new sample"
    return None  # a fresh play of a published run has the same id, but its own answers


def fixed_verdicts_remark(base: System, other: System) -> str | None:
    """Return why a difference says nothing about the verifiers, such as `force_guess` in a system; None otherwise."""
    reasons = ((system.name, system.fixed_verdicts) for system in (base, other))
    return next((f"{name}: {reason}" for name, reason in reasons if reason is not None), None)


class SharedVerdicts(NamedTuple):
    """Verdicts of two systems that come from the same answers."""

    is_majority: bool
    """Whether these are more than half of the smaller system's verdicts."""
    note: str


def shared_verdicts(base: System, other: System) -> SharedVerdicts | None:
    """Return the verdicts of two systems that come from the same answers.

    None if no answers are shared, or if an earlier version did not record where answers come from.
    """
    small, large = sorted((base, other), key=lambda system: system.verdicts)
    shared = sum(a.origins.shared_with(b.origins) for a in small.manifests for b in large.manifests)
    shared = min(shared, small.verdicts)
    note = f"{shared} of {small.verdicts} verdicts of {small.name} come from answers that it shares with {large.name}"
    return SharedVerdicts(2 * shared > small.verdicts, note) if shared else None


def shared_games_notes(base: System, other: System) -> Iterator[str]:
    """Yield notes on the rounds that one system took from the other, and on debates that both judge."""
    for system, source_system in ((base, other), (other, base)):
        ids = {folder.run_id for folder in source_system.runs}
        for manifest in system.manifests:
            source = manifest.replay_of
            if source is not None and source.until_round is not None and source.run_id in ids:
                yield f"{manifest.run_id} has the answers of {source.run_id} before round {source.until_round}"
            if (judged := manifest.rejudge_of) is not None and judged.run_id in ids:
                yield f"{manifest.run_id} judges the debates of {judged.run_id}: the same debates, another judge"
    sources = [
        {judged.run_id for manifest in system.manifests if (judged := manifest.rejudge_of) is not None}
        for system in (base, other)
    ]
    if shared := sources[0] & sources[1]:
        yield f"both judge the debates of {comma_join(sorted(shared))}: the same debates, two judges"


def refuse_repeated_answers(folders: Sequence[RunFolder], manifests: Sequence[Manifest]) -> None:
    """Check that no answers are pooled twice, such as those of a run and of a replay of it.

    Raises:
        UsageError: answers are pooled twice.
    """
    first_runs: dict[str, str] = {}
    for folder, manifest in zip(folders, manifests, strict=True):
        first = first_runs.setdefault(_answer_source(folder, manifest), folder.run_id)
        if first != folder.run_id:
            raise UsageError(f"{first} and {folder.run_id} have the same answers (a replay); pool only one of them")
    singles = [System((folder,), (manifest,)) for folder, manifest in zip(folders, manifests, strict=True)]
    for a, b in combinations(singles, 2):
        if (shared := shared_verdicts(a, b)) is not None and shared.is_majority:
            raise UsageError(f"{shared.note}: they are not two samples. Pool only one of them")


def _answer_sources(system: System) -> set[str]:
    return {_answer_source(folder, manifest) for folder, manifest in zip(system.runs, system.manifests, strict=True)}


def _answer_source(folder: RunFolder, manifest: Manifest) -> str:
    """Return the id of the run whose answers a run has: its own, or the source of a whole replay."""
    visited = {manifest.run_id}
    while manifest.replay_of is not None and manifest.is_whole_replay and manifest.replay_of.run_id not in visited:
        source = folder.sibling(manifest.replay_of.run_id)
        visited.add(source.run_id)
        try:
            manifest = source.manifest()
        except RunError:
            return source.run_id
    return manifest.run_id


@dataclass(frozen=True)
class JudgeAgreement:
    """How often two judges of the same debates give the same verdict; no verdict counts as a third one."""

    debates: int
    groups: int
    agreement: float
    """The share of debates with the same verdict."""
    agreement_ci_low: float
    agreement_ci_high: float
    kappa: float | None
    """Cohen's kappa: 0 for as much agreement as by chance, 1 for complete agreement."""
    kappa_ci_low: float | None
    kappa_ci_high: float | None
    kappa_reason: str | None
    """The reason why kappa or its interval is unknown."""


def agreement_of_judges(base: System, other: System) -> JudgeAgreement | None:
    """Return the agreement of two judges of the same debates; None if no run judges the debates of another.

    Raises:
        RunError: a file of a run is missing or damaged.
    """
    verdicts = [_verdicts_by_debate(system) for system in (base, other)]
    debates = sorted(verdicts[0].keys() & verdicts[1].keys())
    if not debates or not any(manifest.rejudge_of for system in (base, other) for manifest in system.manifests):
        return None
    groups = {group: number for number, group in enumerate(dict.fromkeys(verdicts[0][debate][0] for debate in debates))}
    first, second = ([verdicts_of_judge[debate][1] for debate in debates] for verdicts_of_judge in verdicts)
    result = agreement(first, second, [groups[verdicts[0][debate][0]] for debate in debates], len(groups))
    assert result is not None  # there are debates
    low, high = result.raw.interval
    kappa_low, kappa_high = result.kappa.interval or (None, None)
    return JudgeAgreement(
        len(debates), len(groups), result.raw.value, low, high, result.kappa.value, kappa_low, kappa_high,
        result.kappa.reason,
    )  # fmt: skip


_Debate = tuple[str, str, int, bool, int, bool]
"""The run, the datapoint, the repeat, whether seats are swapped, the stance, and whether stances are exchanged."""


def _verdicts_by_debate(system: System) -> dict[_Debate, tuple[str, int]]:
    """Return the group and the verdict of each debate that a system judged."""
    verdicts: dict[_Debate, tuple[str, int]] = {}
    for folder, manifest in zip(system.runs, system.manifests, strict=True):
        points = played_datapoints(folder, saved_value(folder, "dataset", "group_by"))
        groups = {point.id: point.group for point in points}
        run_id = folder.run_id if manifest.rejudge_of is None else manifest.rejudge_of.run_id
        table = read_only_table("rollouts", folder.intact_table("rollouts"), COLUMNS["rollouts"])
        judged = table.filter(f"outcome <> '{Outcome.TRANSPORT_FAILED}'")
        # A listed answer has the code of `runner.game.protocols.ballot`: 3 for A. Judges of one debate see one order.
        sides = "coalesce(swapped, false), coalesce(stance, -1), coalesce(stances_exchanged, false)"
        for *debate, decision in judged.project(
            f"datapoint_id, repeat, {sides}, coalesce(decision, ascii(answer) - 62, 2)"
        ).fetchall():
            datapoint, repeat, swapped, stance, exchanged = debate
            verdicts[run_id, datapoint, repeat, swapped, stance, exchanged] = groups[datapoint], decision
    return verdicts
