"""The parts of a run held against each other, before they are made one: all that is wrong with them, at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from runner.base.errors import JournalError, MergeError, NipRunError, RunError
from runner.base.storage.log_lines import RUN, first_record, is_bound, scan
from runner.base.storage.safe_files import open_to_read
from runner.base.text import comma_join
from runner.models.journal_records import SHARD
from runner.results.folder import split_part
from runner.results.manifest import PLAYED, Status, is_allowed_loss
from runner.results.spec_changes import changed_keys
from runner.runs.shards.parts import ShardPart
from runner.spec.datasets.shards import Shard

_NAMED = 12
"""So many shards that are missing are named each."""


def checked(run_id: str, parts: Sequence[ShardPart], wrong: Sequence[str]) -> list[ShardPart]:
    """The parts of one run, each there once, whole and of one kind, in the order of their numbers.

    Raises:
        MergeError: they are not; with all that is wrong.
    """
    problems = list(wrong)
    if not parts:
        raise MergeError(run_id, [*problems, "no shard of it has begun here: nip-run SPEC --shard 1/N plays the first"])
    said = Counter((part.manifest.identity, part.shard.of) for part in parts)
    (identity, of), _ = max(said.items(), key=lambda one: one[1])
    ours = [part for part in parts if (part.manifest.identity, part.shard.of) == (identity, of)]
    problems.extend(_foreign(part, ours[0]) for part in parts if part not in ours)
    problems.extend(
        f"{part} is of another run, {whole}, a play of the same spec by itself"
        for part in ours
        if (whole := split_part(part.manifest.run_id)[0]) != run_id
    )
    problems.extend(_numbers(ours, of, parts))
    problems.extend(_unfinished(ours))
    problems.extend(_inputs(ours))
    for part in ours:
        problems.extend(_journal(part))
    if problems:
        raise MergeError(run_id, problems)
    return sorted(ours, key=lambda part: part.shard)


def _foreign(part: ShardPart, ours: ShardPart) -> str:
    """Why a part is none of those that most are."""
    if part.manifest.identity != ours.manifest.identity:
        run_id = split_part(part.manifest.run_id)[0]
        try:
            plan = ours.plan
            keys = changed_keys(part.folder, part.manifest, plan, plan.mutable_keys)
        except NipRunError:
            keys = []
        what = f"these keys differ: {', '.join(keys)}" if keys else "the contents of its files differ"
        return f"{part} is of another run, {run_id}: {what}"
    return f"{part} is one of {part.shard.of} shards, and the others of {ours.shard.of}"


def _numbers(ours: Sequence[ShardPart], of: int, parts: Sequence[ShardPart]) -> Iterator[str]:
    """Shards that are there twice, or not at all."""
    by_number: dict[int, list[ShardPart]] = {}
    for part in ours:
        by_number.setdefault(part.shard.number, []).append(part)
    for number, found in sorted(by_number.items()):
        if len(found) > 1:
            places = comma_join([str(part.folder.path) for part in found])
            yield f"shard {number}/{of} is there {len(found)} times: {places}; leave all but one out"
    missing = [number for number in range(1, of + 1) if number not in by_number]
    if missing:
        named = ", ".join(f"{number}/{of}" for number in missing[:_NAMED])
        more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
        has = "have" if len(missing) > 1 else "has"
        yield f"missing: {named}{more}, which {has} not begun here; play what is missing, or name the folders it is in"
    for part in parts:
        named_by = Shard.of_folder(part.folder.path.name)
        if named_by is not None and named_by != part.shard:
            yield f"{part} stands in the folder of shard {named_by}; give it the name {part.shard.folder}"


def _unfinished(ours: Sequence[ShardPart]) -> Iterator[str]:
    """Parts that have not been played to their end, or lost more than is allowed of all."""
    for part in ours:
        manifest = part.manifest
        if manifest.status == Status.RUNNING:
            yield f"{part} is being played"
        elif manifest.status not in PLAYED:
            why = f": {manifest.why_stopped}" if manifest.why_stopped else ""
            yield f"{part} is not finished ({manifest.status}{why}); resume it: the same command, --shard {part.shard}"
    played = [part for part in ours if part.manifest.status in PLAYED]
    lost = sum(part.manifest.transport_failed or 0 for part in played)
    if not lost:
        return
    try:
        share = played[0].plan.spec.experiment.rollouts.max_transport_failed
    except NipRunError:
        return  # told with the inputs
    if not is_allowed_loss(lost, sum(part.manifest.rollouts or 0 for part in played), share):
        of = comma_join([str(part.shard) for part in played if part.manifest.transport_failed])
        yield (
            f"{lost} rollouts were lost in transport, in shard {of}, and rollouts.max_transport_failed allows a share "
            f"of {share:g} of all; resume these shards, which ask for them again"
        )


def _inputs(ours: Sequence[ShardPart]) -> Iterator[str]:
    """Parts whose spec or inputs are not those of most, or not what was played."""
    said: Counter[tuple[tuple[str, str], ...]] = Counter()
    read: dict[int, Mapping[str, str]] = {}
    for index, part in enumerate(ours):
        try:
            read[index] = part.inputs
        except RunError as error:
            yield f"{part}: {error}"
            continue
        said[tuple(sorted(read[index].items()))] += 1
    if not said:
        return
    most = dict(max(said.items(), key=lambda one: one[1])[0])
    leaves: list[tuple[ShardPart, dict[str, Any]]] = []
    for index, inputs in read.items():
        part = ours[index]
        if inputs != most:
            names = sorted(name for name in inputs.keys() | most.keys() if inputs.get(name) != most.get(name))
            yield f"{part} was played from other inputs, or they were edited since: inputs/{', inputs/'.join(names)}"
            continue
        try:
            if part.plan.identity != part.manifest.identity:
                yield f"{part}: its spec.yaml or inputs/ are not what was played; put them back as they were"
                continue
            leaves.append((part, part.spec_leaves))
        except NipRunError as error:
            yield f"{part}: its spec cannot be read: {error}"
    yield from _other_specs(leaves)


def _other_specs(leaves: Sequence[tuple[ShardPart, dict[str, Any]]]) -> Iterator[str]:
    """Parts whose spec says otherwise than most what is played, or made of it."""
    said = Counter(repr(sorted(one.items(), key=lambda item: item[0])) for _, one in leaves)
    usual = max(said, key=lambda one: said[one], default="")
    first = next((one for _, one in leaves if repr(sorted(one.items(), key=lambda item: item[0])) == usual), {})
    for part, one in leaves:
        keys = sorted(key for key in one.keys() | first.keys() if one.get(key) != first.get(key))
        if keys:
            shown = ", ".join(f"{key} ({one.get(key)!r}, elsewhere {first.get(key)!r})" for key in keys[:6])
            yield f"{part} was played by another spec than the others: {shown}"


def _journal(part: ShardPart) -> Iterator[str]:
    """What keeps the journal of a part from being a piece of the run's."""
    folder, manifest = part.folder, part.manifest
    path = folder.journal
    if not path.is_file():
        yield f"{part}: its journal is missing"
        return
    first = first_record(path)
    if first is None or not is_bound(first) or RUN not in first:
        yield f"{part}: its journal does not begin as one, or is not bound to its run"
        return
    if first.get(SHARD) != list(part.shard.pair) and first.get(RUN) == manifest.identity:
        said = first.get(SHARD)
        of = "the whole run" if said is None else f"shard {'/'.join(map(str, said))}"
        yield f"{part}: its journal is that of {of}"
        return
    try:
        ids = frozenset(point.id for point in part.plan.points)
    except NipRunError:
        ids = None  # told with the inputs
    yield from _lines(part, ids)


def _lines(part: ShardPart, ids: frozenset[str] | None) -> Iterator[str]:
    path, records = part.folder.journal, 0
    others: dict[str, None] = {}
    try:
        with open_to_read(path) as file:
            for _, line, record in scan(file, path, part.manifest.identity):
                if record is None:
                    yield f"{part}: its journal ends in {len(line)} torn bytes; resume it, which cuts them off"
                    continue
                records += 1
                sample = record.get("sample")
                if ids is not None and sample is not None and sample[0] not in ids:
                    others[sample[0]] = None
    except OSError as error:
        yield f"{part}: cannot read {path}: {error.strerror}"
        return
    except (JournalError, RunError) as error:
        yield f"{part}: {error}"
        return
    if others:
        named = ", ".join(list(others)[:3]) + (", ..." if len(others) > 3 else "")
        yield f"{part}: its journal holds answers of other shards' datapoints ({named})"
    ended = part.manifest.journal_records
    if part.manifest.status in PLAYED and ended != records:
        had = "unknown" if ended is None else f"{ended:,}"
        yield (
            f"{part}: its journal has {records:,} records, and had {had} when the shard ended; it was cut or added to: "
            "restore it, or resume the shard with the same command"
        )
