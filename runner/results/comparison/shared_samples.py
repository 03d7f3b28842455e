"""Runs that are not two samples: one run in two systems, a replay and its source, two judges of one debate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import combinations

from runner.base.errors import RunError, UsageError
from runner.base.text import comma_join
from runner.results.comparison.systems import System
from runner.results.folder import RunFolder
from runner.results.manifest import Manifest


def refuse_overlap(systems: Sequence[System]) -> None:
    """See that no run stands in two of these systems.

    Raises:
        UsageError: one does.
    """
    seen: dict[object, System] = {}
    for system in systems:
        for folder in system.runs:
            if seen.setdefault(folder.path.resolve(), system) is not system:
                raise UsageError(
                    f"{folder.run_id} is in two of the systems that are compared; a run is not compared with itself"
                )


def same_answers(base: System, other: System) -> str | None:
    """What to say where one system holds the answers of the other again, as a replay does; None where none does."""
    shared = _origins(base) & _origins(other)
    if not shared:
        return None
    which = comma_join(
        sorted(
            folder.run_id
            for system in (base, other)
            for folder, manifest in zip(system.runs, system.manifests, strict=True)
            if manifest.is_whole_replay and _origin(folder, manifest) in shared
        )
    )
    if which:
        return f"{which}: a replay, the same answers and no new sample"
    ours, theirs = ({(one.run_id, one.started_at) for one in system.manifests} for system in (base, other))
    if copied := comma_join(sorted(run_id for run_id, _ in ours & theirs)):
        return f"{copied}: a copy, the same answers and no new sample"
    return None  # a published run that is played anew has its id, too


def no_verdicts_of_its_own(base: System, other: System) -> str | None:
    """Return the reason why a difference says nothing: the verdicts of one of the systems are not its answers."""
    reasons = ((system.name, system.fixed_verdicts) for system in (base, other))
    return next((f"{name}: {reason}" for name, reason in reasons if reason is not None), None)


def shared_verdicts(base: System, other: System) -> tuple[bool, str] | None:
    """Return how many verdicts come from answers that both systems have, and whether these are more than half.

    None if there are no such answers, or if an earlier version did not record where answers come from.
    """
    few, many = sorted((base, other), key=lambda system: system.verdicts)
    shared = sum(one.origins.shared_with(two.origins) for one in few.manifests for two in many.manifests)
    shared = min(shared, few.verdicts)
    said = f"{shared} of {few.verdicts} verdicts of {few.name} come from answers that it shares with {many.name}"
    return (2 * shared > few.verdicts, said) if shared else None


def same_games(base: System, other: System) -> Iterator[str]:
    """What else two systems share: the rounds that one took from the other, or the debates that both judge."""
    for one, two in ((base, other), (other, base)):
        ids = {folder.run_id for folder in two.runs}
        for manifest in one.manifests:
            source = manifest.replay_of
            if source is not None and source.until_round is not None and source.run_id in ids:
                yield f"{manifest.run_id} has the answers of {source.run_id} before round {source.until_round}"
            if (judges := manifest.rejudge_of) is not None and judges.run_id in ids:
                yield f"{manifest.run_id} judges the debates of {judges.run_id}: the same debates, another judge"
    judged = [{one.rejudge_of.run_id for one in s.manifests if one.rejudge_of is not None} for s in (base, other)]
    if both := judged[0] & judged[1]:
        yield f"both judge the debates of {comma_join(sorted(both))}: the same debates, two judges"


def refuse_repeated_answers(folders: Sequence[RunFolder], manifests: Sequence[Manifest]) -> None:
    """See that no answers are pooled twice: those of a run, and of a replay of it.

    Raises:
        UsageError: some would be.
    """
    seen: dict[str, str] = {}
    for folder, manifest in zip(folders, manifests, strict=True):
        first = seen.setdefault(_origin(folder, manifest), folder.run_id)
        if first != folder.run_id:
            raise UsageError(f"{first} and {folder.run_id} have the same answers, of a replay; pool one of them")
    singles = [System((folder,), (manifest,)) for folder, manifest in zip(folders, manifests, strict=True)]
    for one, two in combinations(singles, 2):
        if (shared := shared_verdicts(one, two)) is not None and shared[0]:
            raise UsageError(f"{shared[1]}: they are not two samples. Pool one of them")


def _origins(system: System) -> set[str]:
    return {_origin(folder, manifest) for folder, manifest in zip(system.runs, system.manifests, strict=True)}


def _origin(folder: RunFolder, manifest: Manifest) -> str:
    """The run whose answers a run has: its own, or those of what it replays from beginning to end."""
    seen = {manifest.run_id}
    while manifest.replay_of is not None and manifest.is_whole_replay and manifest.replay_of.run_id not in seen:
        source = folder.beside(manifest.replay_of.run_id)
        seen.add(source.run_id)
        with suppress(RunError):
            manifest = source.manifest()
            continue
        return source.run_id
    return manifest.run_id
