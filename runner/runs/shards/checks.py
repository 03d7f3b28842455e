"""Checks the shards of a run before they are merged, and reports all problems together.

The shards may come from several machines, so each may be damaged or belong to another run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import mode
from typing import Any

from runner.base.batches import group_pairs
from runner.base.errors import JournalError, MergeError, NipRunError, RunError
from runner.base.storage.log_lines import RUN, SHARD, first_record, is_bound_to_run, scan
from runner.base.storage.safe_files import open_to_read
from runner.base.text import comma_join
from runner.results.folder import split_part
from runner.results.manifest import PLAYED, Status, is_allowed_loss
from runner.results.spec_changes import changed_keys
from runner.runs.shards.stored_shards import StoredShard
from runner.spec.datasets.shards import Shard

_MAX_LISTED = 12
"""The maximum number of missing shards that a message lists."""


def check_shards(run_id: str, shards: Sequence[StoredShard], earlier_problems: Sequence[str]) -> list[StoredShard]:
    """Check that each shard of a run exists once, is complete and belongs to the run, and return the shards in order.

    `earlier_problems` are problems that the caller has already found.

    Raises:
        MergeError: there are problems; the error lists all of them.
    """
    problems = list(earlier_problems)
    if not shards:
        raise MergeError(run_id, [*problems, "no shard has started here; play the first with nip-run SPEC --shard 1/N"])
    keys = [(shard.manifest.identity, shard.position.of) for shard in shards]
    usual_key = mode(keys)
    usual_shards = [shard for shard, key in zip(shards, keys, strict=True) if key == usual_key]
    problems.extend(_describe_mismatch(shard, usual_shards[0]) for shard in shards if shard not in usual_shards)
    problems.extend(
        f"{shard} belongs to {other_run_id}, another run of the same spec; leave out this folder"
        for shard in usual_shards
        if (other_run_id := split_part(shard.manifest.run_id)[0]) != run_id
    )
    problems.extend(_find_position_problems(usual_shards, shards))
    problems.extend(_find_unfinished_shards(usual_shards))
    problems.extend(_find_input_problems(usual_shards))
    for shard in usual_shards:
        problems.extend(_find_journal_problems(shard))
    if problems:
        raise MergeError(run_id, problems)
    return sorted(usual_shards, key=lambda shard: shard.position)


def _describe_mismatch(shard: StoredShard, usual_shard: StoredShard) -> str:
    """Return why a shard does not belong to the same run as most shards. `usual_shard` is one of these shards."""
    if shard.manifest.identity != usual_shard.manifest.identity:
        run_id = split_part(shard.manifest.run_id)[0]
        try:
            plan = usual_shard.plan
            keys = changed_keys(shard.folder, shard.manifest, plan, plan.mutable_keys)
        except NipRunError:
            keys = []
        difference = f"these keys differ: {', '.join(keys)}" if keys else "the contents of its files differ"
        return f"{shard} belongs to another run, {run_id}: {difference}; leave out this folder"
    return (
        f"{shard} is one of {shard.position.of} shards, but most folders belong to a run in {usual_shard.position.of} "
        "shards; leave out this folder, or play all shards with the same number N in --shard K/N"
    )


def _find_position_problems(usual_shards: Sequence[StoredShard], shards: Sequence[StoredShard]) -> Iterator[str]:
    """Yield a problem for each shard that exists several times, is missing, or is in the wrong folder."""
    shard_count = usual_shards[0].position.of
    by_number = group_pairs((shard.position.number, shard) for shard in usual_shards)
    for number, duplicates in sorted(by_number.items()):
        if len(duplicates) > 1:
            paths = comma_join([str(shard.folder.path) for shard in duplicates])
            times = f"exists {len(duplicates)} times"
            yield f"shard {number}/{shard_count} {times}: {paths}; leave out all of them except one"
    missing = [number for number in range(1, shard_count + 1) if number not in by_number]
    if missing:
        listed = ", ".join(f"{number}/{shard_count}" for number in missing[:_MAX_LISTED])
        more = f" and {len(missing) - _MAX_LISTED} more" if len(missing) > _MAX_LISTED else ""
        yield f"missing: {listed}{more}; play the missing shards, or add their folders to the command"
    for shard in shards:
        folder_position = Shard.of_folder(shard.folder.path.name)
        if folder_position is not None and folder_position != shard.position:
            yield f"{shard} is in the folder of shard {folder_position}; rename the folder to {shard.position.folder}"


def _find_unfinished_shards(usual_shards: Sequence[StoredShard]) -> Iterator[str]:
    """Yield a problem for each shard that is not finished, and one if the shards lost too many rollouts in total."""
    for shard in usual_shards:
        manifest = shard.manifest
        if manifest.status == Status.RUNNING:
            yield f"{shard} is still running; wait until it has finished, and merge again"
        elif manifest.status not in PLAYED:
            reason = f": {manifest.why_stopped}" if manifest.why_stopped else ""
            yield f"{shard} is not finished ({manifest.status}{reason}); resume it with --shard {shard.position}"
    played = [shard for shard in usual_shards if shard.manifest.status in PLAYED]
    lost = sum(shard.manifest.transport_failed or 0 for shard in played)
    if not lost:
        return
    try:
        allowed_share = played[0].plan.spec.experiment.rollouts.max_transport_failed
    except NipRunError:
        return  # `_find_input_problems` reports the error
    if not is_allowed_loss(lost, sum(shard.manifest.rollouts or 0 for shard in played), allowed_share):
        affected = comma_join([str(shard.position) for shard in played if shard.manifest.transport_failed])
        yield (
            f"{lost} rollouts were lost in transport, in shard {affected}, but rollouts.max_transport_failed allows "
            f"only a share of {allowed_share:g}; resume these shards to play the lost rollouts again"
        )


def _find_input_problems(usual_shards: Sequence[StoredShard]) -> Iterator[str]:
    """Yield a problem for each shard whose spec or inputs were edited, or differ from most shards."""
    readable: list[tuple[StoredShard, Mapping[str, str]]] = []
    for shard in usual_shards:
        try:
            readable.append((shard, shard.inputs))
        except RunError as error:
            yield f"{shard}: {error}"
    usual_inputs = _most_frequent([inputs for _, inputs in readable])
    spec_values: list[tuple[StoredShard, Mapping[str, Any]]] = []
    for shard, inputs in readable:
        if names := _differing_keys(inputs, usual_inputs):
            yield (
                f"{shard} has other inputs than most shards: inputs/{', inputs/'.join(names)}. Restore these files, or "
                "play this shard again with the same inputs"
            )
            continue
        try:
            if shard.plan.identity != shard.manifest.identity:
                yield f"{shard}: its spec.yaml or inputs/ were edited after the shard was played; restore them"
                continue
            spec_values.append((shard, shard.spec_values))
        except NipRunError as error:
            yield f"{shard}: its spec cannot be read: {error}"
    yield from _find_spec_problems(spec_values)


def _find_spec_problems(spec_values: Sequence[tuple[StoredShard, Mapping[str, object]]]) -> Iterator[str]:
    """Yield a problem for each shard whose spec differs from most shards in a value that must be the same."""
    usual_values = _most_frequent([values for _, values in spec_values])
    for shard, values in spec_values:
        if keys := _differing_keys(values, usual_values):
            listed = ", ".join(f"{key} ({values.get(key)!r}, elsewhere {usual_values.get(key)!r})" for key in keys[:6])
            yield f"{shard} was played with a different spec: {listed}; repeat the shards with the same values"


def _most_frequent(mappings: Sequence[Mapping[str, object]]) -> Mapping[str, object]:
    """Return the mapping that occurs most often, the first in case of a tie; an empty one if there are none."""
    contents = [repr(sorted(mapping.items())) for mapping in mappings]
    return mappings[contents.index(mode(contents))] if mappings else {}


def _differing_keys(first: Mapping[str, object], second: Mapping[str, object]) -> list[str]:
    return sorted(key for key in first.keys() | second.keys() if first.get(key) != second.get(key))


def _find_journal_problems(shard: StoredShard) -> Iterator[str]:
    """Yield the problems of a shard's journal."""
    folder, manifest = shard.folder, shard.manifest
    path = folder.journal
    if not path.is_file():
        yield f"{shard}: its journal is missing; copy {path.name} from the machine that played this shard"
        return
    header = first_record(path)
    if header is None or not is_bound_to_run(header) or RUN not in header:
        yield f"{shard}: the first record of its journal is damaged or does not name a run; restore the journal"
        return
    recorded_shard = header.get(SHARD)
    is_of_same_run = header[RUN] == manifest.identity  # `_find_record_problems` reports a journal of another run
    if is_of_same_run and recorded_shard != list(shard.position.pair):
        owner = "the whole run" if recorded_shard is None else f"shard {'/'.join(map(str, recorded_shard))}"
        yield f"{shard}: its journal belongs to {owner}; restore the journal of this shard"
        return
    try:
        ids = frozenset(point.id for point in shard.plan.points)
    except NipRunError:
        ids = None  # `_find_input_problems` reports the error
    yield from _find_record_problems(shard, ids)


def _find_record_problems(shard: StoredShard, ids: frozenset[str] | None) -> Iterator[str]:
    """Yield the problems of the records in a shard's journal; `ids` are the shard's datapoints, if known."""
    path, record_count = shard.folder.journal, 0
    foreign_ids: dict[str, None] = {}
    try:
        with open_to_read(path) as file:
            for _, line, record in scan(file, path, shard.manifest.identity):
                if record is None:
                    yield (
                        f"{shard}: its journal ends in an incomplete line of {len(line)} bytes from an interrupted "
                        "write; resume this shard to repair the journal"
                    )
                    continue
                record_count += 1
                sample = record.get("sample")
                if ids is not None and sample is not None and sample[0] not in ids:
                    foreign_ids[sample[0]] = None
    except OSError as error:
        yield f"{shard}: cannot read {path}: {error.strerror}; make the file readable"
        return
    except (JournalError, RunError) as error:
        yield f"{shard}: {error}"
        return
    if foreign_ids:
        listed = ", ".join(list(foreign_ids)[:3]) + (", ..." if len(foreign_ids) > 3 else "")
        yield f"{shard}: its journal has answers for datapoints of other shards ({listed}); restore its own journal"
    expected_count = shard.manifest.journal_records
    if shard.manifest.status in PLAYED and expected_count != record_count:
        expected = "an unknown number" if expected_count is None else f"{expected_count:,}"
        yield (
            f"{shard}: its journal has {record_count:,} records, but had {expected} when the shard ended; restore the "
            "journal, or resume the shard with the same command"
        )
