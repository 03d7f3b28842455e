"""Checks the shards of a run before they are merged, and reports all problems together.

A part is the folder of one shard. Parts may come from several machines, so each part may be wrong or damaged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from runner.base.errors import JournalError, MergeError, NipRunError, RunError
from runner.base.storage.log_lines import RUN, SHARD, first_record, is_bound, scan
from runner.base.storage.safe_files import open_to_read
from runner.base.text import comma_join
from runner.results.folder import split_part
from runner.results.manifest import PLAYED, Status, is_allowed_loss
from runner.results.spec_changes import changed_keys
from runner.runs.shards.parts import ShardPart
from runner.spec.datasets.shards import Shard

_MAX_LISTED = 12
"""The maximum number of missing shards that a message lists."""


def check_and_sort_parts(run_id: str, parts: Sequence[ShardPart], earlier_problems: Sequence[str]) -> list[ShardPart]:
    """Check that each shard of a run exists once, is complete and belongs to the run, and return the shards in order.

    `earlier_problems` are problems that the caller has already found.

    Raises:
        MergeError: there are problems; the error lists all of them.
    """
    problems = list(earlier_problems)
    if not parts:
        raise MergeError(run_id, [*problems, "no shard has started here; play the first with nip-run SPEC --shard 1/N"])
    counts = Counter((part.manifest.identity, part.shard.of) for part in parts)
    (identity, shard_count), _ = max(counts.items(), key=lambda item: item[1])
    majority = [part for part in parts if (part.manifest.identity, part.shard.of) == (identity, shard_count)]
    problems.extend(_describe_mismatch(part, majority[0]) for part in parts if part not in majority)
    problems.extend(
        f"{part} belongs to {other_run_id}, another run of the same spec; leave out this folder"
        for part in majority
        if (other_run_id := split_part(part.manifest.run_id)[0]) != run_id
    )
    problems.extend(_find_number_problems(majority, shard_count, parts))
    problems.extend(_find_unfinished_parts(majority))
    problems.extend(_find_input_problems(majority))
    for part in majority:
        problems.extend(_find_journal_problems(part))
    if problems:
        raise MergeError(run_id, problems)
    return sorted(majority, key=lambda part: part.shard)


def _describe_mismatch(part: ShardPart, majority_part: ShardPart) -> str:
    """Return why a part does not belong to the same run as most parts. `majority_part` is one of these parts."""
    if part.manifest.identity != majority_part.manifest.identity:
        run_id = split_part(part.manifest.run_id)[0]
        try:
            plan = majority_part.plan
            keys = changed_keys(part.folder, part.manifest, plan, plan.mutable_keys)
        except NipRunError:
            keys = []
        difference = f"these keys differ: {', '.join(keys)}" if keys else "the contents of its files differ"
        return f"{part} belongs to another run, {run_id}: {difference}; leave out this folder"
    return (
        f"{part} is one of {part.shard.of} shards, but most parts are of {majority_part.shard.of} shards; leave out "
        "this folder, or play the run with one number of shards"
    )


def _find_number_problems(members: Sequence[ShardPart], shard_count: int, parts: Sequence[ShardPart]) -> Iterator[str]:
    """Yield a problem for each shard that exists several times, is missing, or is in the wrong folder."""
    by_number: dict[int, list[ShardPart]] = {}
    for part in members:
        by_number.setdefault(part.shard.number, []).append(part)
    for number, duplicates in sorted(by_number.items()):
        if len(duplicates) > 1:
            paths = comma_join([str(part.folder.path) for part in duplicates])
            shard = f"shard {number}/{shard_count}"
            yield f"{shard} exists {len(duplicates)} times: {paths}; leave out all of them except one"
    missing = [number for number in range(1, shard_count + 1) if number not in by_number]
    if missing:
        listed = ", ".join(f"{number}/{shard_count}" for number in missing[:_MAX_LISTED])
        more = f" and {len(missing) - _MAX_LISTED} more" if len(missing) > _MAX_LISTED else ""
        yield f"missing: {listed}{more}; play the missing shards, or add their folders to the command"
    for part in parts:
        folder_shard = Shard.of_folder(part.folder.path.name)
        if folder_shard is not None and folder_shard != part.shard:
            yield f"{part} is in the folder of shard {folder_shard}; rename the folder to {part.shard.folder}"


def _find_unfinished_parts(majority: Sequence[ShardPart]) -> Iterator[str]:
    """Yield a problem for each part that is not finished, and one if the parts lost too many rollouts in total."""
    for part in majority:
        manifest = part.manifest
        if manifest.status == Status.RUNNING:
            yield f"{part} is still running; wait until it has finished, and merge again"
        elif manifest.status not in PLAYED:
            reason = f": {manifest.why_stopped}" if manifest.why_stopped else ""
            yield f"{part} is not finished ({manifest.status}{reason}); resume this shard with --shard {part.shard}"
    played = [part for part in majority if part.manifest.status in PLAYED]
    lost = sum(part.manifest.transport_failed or 0 for part in played)
    if not lost:
        return
    try:
        share = played[0].plan.spec.experiment.rollouts.max_transport_failed
    except NipRunError:
        return  # `_find_input_problems` reports the error
    if not is_allowed_loss(lost, sum(part.manifest.rollouts or 0 for part in played), share):
        shards = comma_join([str(part.shard) for part in played if part.manifest.transport_failed])
        yield (
            f"{lost} rollouts were lost in transport, in shard {shards}, but rollouts.max_transport_failed allows "
            f"only a share of {share:g}; resume these shards to play the lost rollouts again"
        )


def _find_input_problems(majority: Sequence[ShardPart]) -> Iterator[str]:
    """Yield a problem for each part whose spec or inputs were edited, or differ from most parts."""
    readable: list[tuple[ShardPart, Mapping[str, str]]] = []
    for part in majority:
        try:
            readable.append((part, part.inputs))
        except RunError as error:
            yield f"{part}: {error}"
    usual_inputs = _most_frequent([inputs for _, inputs in readable])
    spec_values: list[tuple[ShardPart, Mapping[str, Any]]] = []
    for part, inputs in readable:
        if names := _differing_keys(inputs, usual_inputs):
            yield (
                f"{part} has other inputs than most shards: inputs/{', inputs/'.join(names)}. Restore these files, or "
                "play this shard again with the same inputs"
            )
            continue
        try:
            if part.plan.identity != part.manifest.identity:
                yield f"{part}: its spec.yaml or inputs/ were edited after the shard was played; restore them"
                continue
            spec_values.append((part, part.spec_values))
        except NipRunError as error:
            yield f"{part}: its spec cannot be read: {error}"
    yield from _find_spec_problems(spec_values)


def _find_spec_problems(spec_values: Sequence[tuple[ShardPart, Mapping[str, Any]]]) -> Iterator[str]:
    """Yield a problem for each part whose spec differs from most parts in a value that must be the same."""
    usual_values = _most_frequent([values for _, values in spec_values])
    for part, values in spec_values:
        if keys := _differing_keys(values, usual_values):
            listed = ", ".join(f"{key} ({values.get(key)!r}, elsewhere {usual_values.get(key)!r})" for key in keys[:6])
            yield f"{part} was played with a different spec: {listed}; play this shard again with the others' spec"


def _most_frequent(mappings: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the mapping that occurs most often, the first in case of a tie; an empty one if there are none."""
    contents = [repr(sorted(mapping.items())) for mapping in mappings]
    return mappings[contents.index(Counter(contents).most_common(1)[0][0])] if mappings else {}


def _differing_keys(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    return sorted(key for key in first.keys() | second.keys() if first.get(key) != second.get(key))


def _find_journal_problems(part: ShardPart) -> Iterator[str]:
    """Yield the problems of a part's journal."""
    folder, manifest = part.folder, part.manifest
    path = folder.journal
    if not path.is_file():
        yield f"{part}: its journal is missing; copy {path.name} from the machine that played this shard"
        return
    header = first_record(path)
    if header is None or not is_bound(header) or RUN not in header:
        yield f"{part}: the first record of its journal is damaged or does not name a run; restore the journal"
        return
    if header.get(SHARD) != list(part.shard.pair) and header.get(RUN) == manifest.identity:
        recorded_shard = header.get(SHARD)
        owner = "the whole run" if recorded_shard is None else f"shard {'/'.join(map(str, recorded_shard))}"
        yield f"{part}: its journal belongs to {owner}; restore the journal of this shard"
        return
    try:
        ids = frozenset(point.id for point in part.plan.points)
    except NipRunError:
        ids = None  # `_find_input_problems` reports the error
    yield from _find_record_problems(part, ids)


def _find_record_problems(part: ShardPart, ids: frozenset[str] | None) -> Iterator[str]:
    """Yield the problems of the records in a part's journal; `ids` are the part's datapoints, if known."""
    path, record_count = part.folder.journal, 0
    foreign_ids: dict[str, None] = {}
    try:
        with open_to_read(path) as file:
            for _, line, record in scan(file, path, part.manifest.identity):
                if record is None:
                    yield (
                        f"{part}: its journal ends in an incomplete line of {len(line)} bytes from an interrupted "
                        "write; resume this shard to repair the journal"
                    )
                    continue
                record_count += 1
                sample = record.get("sample")
                if ids is not None and sample is not None and sample[0] not in ids:
                    foreign_ids[sample[0]] = None
    except OSError as error:
        yield f"{part}: cannot read {path}: {error.strerror}; make the file readable"
        return
    except (JournalError, RunError) as error:
        yield f"{part}: {error}"
        return
    if foreign_ids:
        listed = ", ".join(list(foreign_ids)[:3]) + (", ..." if len(foreign_ids) > 3 else "")
        yield f"{part}: its journal has answers for datapoints of other shards ({listed}); restore this shard's journal"
    expected_count = part.manifest.journal_records
    if part.manifest.status in PLAYED and expected_count != record_count:
        expected = "an unknown number" if expected_count is None else f"{expected_count:,}"
        yield (
            f"{part}: its journal has {record_count:,} records, but had {expected} when the shard ended; restore the "
            "journal, or resume the shard with the same command"
        )
