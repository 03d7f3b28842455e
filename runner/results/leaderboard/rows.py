"""A run's folder into rows of the board, in memory that does not grow with them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.base.hashing import canonical, tagged_hash
from runner.base.storage.duckdb_connections import duckdb_pattern
from runner.base.storage.safe_files import read_bounded
from runner.documents.plain_values import MAX_DEPTH
from runner.models.interface import LATER_CLASSES
from runner.models.provider_traits import traits_of
from runner.results.folder import RunFolder
from runner.results.leaderboard.schema import BOARD_TABLES
from runner.results.manifest import PLAYED, Manifest, verifiers_of
from runner.results.stopping_rule import board_facts
from runner.results.sweep_points import shown_point
from runner.results.tasks import PlayedDatapoint, Task, played_datapoints, template_variables
from runner.rollouts.rollout import Outcome
from runner.spec.checks.fixed_verdicts import fixed_verdicts

if TYPE_CHECKING:
    import duckdb

PIECE_ROWS = 10_000
PIECE_BYTES = 8 << 20
MEMORY = 64 << 20
"""DuckDB keeps what it has read and written of the board until this is full, however little of it is used again."""
MAX_SPEC = 4 << 20
"""A resolved spec is longer than what it was made of."""
COPIES = 8
"""How often DuckDB holds a piece, at most, as it copies it from Parquet to the board."""

DATAPOINTS, DATAPOINTS_SIZE = 1_000, 1 << 20
"""So many datapoints, and characters of them, are put on the board at once."""

FAILURES = (Outcome.TRANSPORT_FAILED, Outcome.INVALID_RESPONSE, Outcome.REFUSED, Outcome.CONTEXT_EXCEEDED)

_RUN_COLUMNS = (
    "run_id", "name", "kind", "benchmark", "protocol", "status", "seed", "spec_sha256", "version", "git_commit",
    "git_dirty", "parent_run_id", "iteration", "started_at", "finished_at", "rollouts", "completions",
    "prompt_tokens", "completion_tokens", "cached_tokens", "cost_usd", "dataset_sha256", "game_sha256",
)  # fmt: skip


def remove(connection: duckdb.DuckDBPyConnection, run_id: str) -> None:
    """Take a run's rows from the tables."""
    for table in BOARD_TABLES:
        connection.execute(f"DELETE FROM {table} WHERE run_id = ?", [run_id])
    connection.execute("DELETE FROM rank_tests WHERE leader = ?", [run_id])


def insert(connection: duckdb.DuckDBPyConnection, folder: RunFolder) -> None:
    """Put a run's rows into the tables; those of the same run that stand there are replaced."""
    manifest = folder.manifest()
    finished = manifest.status in PLAYED and folder.metrics.is_file() and folder.table("rollouts").is_file()
    # A run that failed or was interrupted has a row that says so, and no numbers.
    metrics = folder.read_metrics() if finished else {"outcomes": {}, "metrics": []}
    if finished:
        folder.intact_table("rollouts")
    run_id = manifest.run_id
    remove(connection, run_id)
    saved = _spec(folder)
    spec = json.dumps(saved, sort_keys=True)
    row = [getattr(manifest, name) for name in _RUN_COLUMNS]
    names = ", ".join(_RUN_COLUMNS)
    marks = ", ".join("?" * len(_RUN_COLUMNS))
    connection.execute(
        f"INSERT INTO runs ({names}, spec, outcomes, training) VALUES ({marks}, ?, ?, ?)",
        [*row, spec, json.dumps(metrics["outcomes"]), _json_or_null(manifest.training)],
    )
    add_facts(connection, folder, saved)
    connection.begin()  # each of these small rows would be written to disk by itself
    for agent in manifest.agents:
        connection.execute(
            "INSERT INTO agents VALUES (?, ?, ?, ?, ?, ?, ?)",
            [run_id, *(agent[k] for k in ("agent", "role", "model_group", "provider", "model", "base_model"))],
        )
    keys = ("agent", "metric", "value", "stderr", "ci_low", "ci_high", "n", "clusters", "reason")
    if rows := metrics["metrics"]:  # at once: one statement for each would take most of the time of a run
        columns = [[row.get(name) if name == "reason" else row[name] for row in rows] for name in keys]
        connection.execute(
            f"INSERT INTO metrics (run_id, {', '.join(keys)}) SELECT ?, {', '.join(['unnest(?)'] * len(keys))}",
            [run_id, *columns],
        )
    connection.commit()
    if finished:
        _insert_rollouts(connection, folder)


def fixed_verdicts_of(folder: RunFolder) -> str | None:
    """The reason why a run's verdicts say nothing about its verifier's answers; None if they do."""
    return fixed_verdicts(saved_value(folder, "protocol", "force_guess"), verifiers_of(folder.manifest()))


def add_facts(connection: duckdb.DuckDBPyConnection, folder: RunFolder, saved: Mapping[str, Any] | None = None) -> None:
    """Put what came after 0.1.0 beside a run's row, from its folder: how it was selected, its task, its datapoints.

    `saved` is its spec, where it was read before.
    """
    manifest, spec = folder.manifest(), _spec(folder) if saved is None else saved
    metrics = folder.read_metrics() if folder.metrics.is_file() and manifest.status in PLAYED else {}
    group_by = _at(spec, "dataset", "group_by")
    task = None if manifest.is_training_run else _insert_datapoints(connection, folder, group_by)
    facts = {**_played_facts(manifest, spec), **_outcome_facts(metrics.get("outcomes", {}))}
    facts |= board_facts(spec, metrics)
    if task is not None:
        facts |= {
            "task": task.sha256,
            "dataset_content_sha256": task.dataset_content_sha256,
            "template_columns": task.template_columns,
        }
    changed = ", ".join(f'"{name}" = ?' for name in facts)
    connection.execute(f"UPDATE runs SET {changed} WHERE run_id = ?", [*facts.values(), folder.run_id])


def _played_facts(manifest: Manifest, spec: Mapping[str, Any]) -> dict[str, Any]:
    """How a run's datapoints were selected and played, and the hashes of what it is made of."""
    selection = manifest.dataset_selection
    replay_of, until_round = manifest.replay_of or (_replayed_by_all(spec), None)
    return {
        **{name: selection.get(name) for name in ("split", "filter", "limit", "balance", "shuffle")},
        "group_by": _at(spec, "dataset", "group_by"),
        "point": shown_point(manifest.point) or None,
        "per_datapoint": _at(spec, "rollouts", "per_datapoint"),
        "responses_per_step": _at(spec, "rollouts", "num_responses_per_timestep"),
        "max_transport_failed": _at(spec, "rollouts", "max_transport_failed") or 0.0,
        "replay_of": replay_of,
        "replay_until_round": until_round,
        "fixed_verdicts": fixed_verdicts(_at(spec, "protocol", "force_guess"), verifiers_of(manifest)),
        "journal": manifest.journal,
        **{name: getattr(manifest, name) for name in LATER_CLASSES},
        "answers_from": None if manifest.answers_from is None else json.dumps(dict(manifest.origins.copied)),
        "rejudge_of": None if manifest.rejudge_of is None else manifest.rejudge_of.run_id,
        "dataset_source_sha256": manifest.dataset_source_sha256,
        "prompts_sha256": tagged_hash("prompts", dict(manifest.prompts_sha256)),
        "protocol_sha256": manifest.protocol_sha256,
    }


def _outcome_facts(outcomes: Mapping[str, int]) -> dict[str, int | None]:
    """How many rollouts had each outcome that is not a verdict; nulls where they are not known."""
    known = {one.value: outcomes.get(one.value, 0) if outcomes else None for one in Outcome if one != Outcome.DECIDED}
    return {**known, "failures": sum(outcomes.get(one, 0) for one in FAILURES) if outcomes else None}


def _replayed_by_all(spec: Mapping[str, Any]) -> str | None:
    """The run that a spec's agents replay, each of them; None where some are asked, or they replay several."""
    models, agents = spec.get("models") or {}, spec.get("agents") or {}
    used = [models.get(_at(agents, name, "model")) or {} for name in agents]
    runs = {
        Path(group["run"]).name if traits_of(group.get("provider")).needs_run and group.get("run") else None
        for group in used
    }
    return runs.pop() if len(runs) == 1 else None


def _insert_datapoints(connection: duckdb.DuckDBPyConnection, folder: RunFolder, group_by: str | None) -> Task | None:
    """Put a run's datapoints into their table; its task, or None where its inputs cannot be read."""
    connection.execute("DELETE FROM datapoints WHERE run_id = ?", [folder.run_id])
    digests: list[str] = []
    columns: set[str] = set()
    try:
        used = template_variables(folder)
        for piece in _in_pieces(played_datapoints(folder, group_by)):
            rows = [(p.id, p.group, p.label, p.content_sha256, canonical(p.columns).decode()) for p in piece]
            connection.execute(
                "INSERT INTO datapoints SELECT ?, unnest(?), unnest(?), unnest(?), unnest(?), unnest(?)",
                [folder.run_id, *map(list, zip(*rows, strict=True))],
            )
            digests.extend(point.digest for point in piece)
            columns.update(*(point.columns for point in piece))
    except (OSError, ValueError):
        connection.execute("DELETE FROM datapoints WHERE run_id = ?", [folder.run_id])
        return None
    return Task.of(digests, used & columns)


def _in_pieces(points: Iterable[PlayedDatapoint]) -> Iterator[list[PlayedDatapoint]]:
    """Datapoints in lists that are bounded in number and, but for a single one, in size."""
    piece: list[PlayedDatapoint] = []
    size = 0
    for point in points:
        more = sum(len(str(value)) for value in point.columns.values())
        if piece and (len(piece) >= DATAPOINTS or size + more > DATAPOINTS_SIZE):
            yield piece
            piece, size = [], 0
        piece.append(point)
        size += more
    if piece:
        yield piece


def _at(data: Mapping[str, Any], *names: str) -> Any:
    """What stands at the end of these names; None where there is nothing."""
    found: Any = data
    for name in names:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _insert_rollouts(connection: duckdb.DuckDBPyConnection, folder: RunFolder) -> None:
    """Copy a run's rollouts in pieces, so that memory does not grow with them or with what is told of their errors."""
    path = duckdb_pattern(folder.intact_table("rollouts"))
    pieces = list(_pieces(connection, path))
    needed = COPIES * max((size for _, _, size in pieces), default=0)
    if needed > MEMORY:
        connection.execute(f"SET memory_limit = '{needed}B'")
    for first, end, _ in pieces:
        connection.execute(
            "INSERT INTO rollouts BY NAME SELECT * EXCLUDE (file_row_number) "
            "FROM read_parquet(?, file_row_number=true, hive_partitioning=false) WHERE file_row_number BETWEEN ? AND ?",
            [path, first, end - 1],
        )


def _pieces(connection: duckdb.DuckDBPyConnection, path: str) -> Iterator[tuple[int, int, int]]:
    """The rows of a Parquet file by whole row groups: the first, the one after the last, and their bytes."""
    groups = connection.execute(
        "SELECT row_group_num_rows, sum(total_uncompressed_size)::BIGINT FROM parquet_metadata(?) "
        "GROUP BY row_group_id, row_group_num_rows ORDER BY row_group_id",
        [path],
    ).fetchall()
    first = end = size = 0
    for rows, more in groups:
        if end > first and (end - first + rows > PIECE_ROWS or size + more > PIECE_BYTES):
            yield first, end, size
            first, size = end, 0
        end, size = end + rows, size + more
    if end > first:
        yield first, end, size


def saved_value(folder: RunFolder, *names: str) -> Any:
    """What stands in a run's saved spec at the end of these names; None where there is nothing."""
    return _at(_spec(folder), *names)


def _json_or_null(value: Any) -> str | None:
    return None if value is None else json.dumps(value)


def _spec(folder: RunFolder) -> dict[str, Any]:
    import yaml

    raw = read_bounded(folder.spec, MAX_SPEC)
    fast = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    depth = deepest = 0
    for event in yaml.parse(raw, Loader=fast):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        deepest = max(deepest, depth)
    # libyaml's composer recurses, and dies where Python's raises.
    found: dict[str, Any] = yaml.load(raw, Loader=fast if deepest <= MAX_DEPTH else yaml.SafeLoader)  # noqa: S506
    return found
