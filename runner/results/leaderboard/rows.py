"""Insert and update a run's rows on the board, in memory that does not grow with the number of rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.base.batches import batches
from runner.base.hashing import canonical, tagged_hash
from runner.base.storage.duckdb_connections import duckdb_pattern
from runner.base.token_classes import NEW_TOKEN_CLASSES
from runner.models.provider_traits import traits_of
from runner.results.folder import RunFolder
from runner.results.leaderboard.schema import BOARD_TABLES
from runner.results.manifest import PLAYED, Manifest, verifiers_of
from runner.results.saved_spec import look_up, read_saved_spec, saved_value
from runner.results.sweep_points import format_point
from runner.results.tasks import PlayedDatapoint, Task, played_datapoints
from runner.rollouts.rollout import Outcome
from runner.spec.checks.fixed_verdicts import explain_fixed_verdicts

if TYPE_CHECKING:
    import duckdb

PIECE_ROWS = 10_000
PIECE_BYTES = 8 << 20
"""Maximum size of a piece, which is a number of rollouts that are inserted at once; see `_row_ranges`."""
MEMORY = 32 << 20
"""The memory limit while rows are inserted, unless a piece needs more. DuckDB caches the new rows up to this limit."""
COPIES = 8
"""The maximum number of copies of a piece in DuckDB's memory while it is inserted."""

MAX_DATAPOINTS, MAX_CHARACTERS = 1_000, 1 << 18
"""The maximum number of datapoints, and of their characters, that are inserted at once."""

FAILURES = (Outcome.TRANSPORT_FAILED, Outcome.INVALID_RESPONSE, Outcome.REFUSED, Outcome.CONTEXT_EXCEEDED)
"""The outcomes in the deprecated column `failures`."""

_RUN_COLUMNS = (
    "run_id", "name", "kind", "benchmark", "protocol", "status", "seed", "spec_sha256", "version", "git_commit",
    "git_dirty", "parent_run_id", "iteration", "started_at", "finished_at", "rollouts", "completions",
    "prompt_tokens", "completion_tokens", "cached_tokens", "cost_usd", "dataset_sha256", "game_sha256",
)  # fmt: skip


def remove_run(connection: duckdb.DuckDBPyConnection, run_id: str) -> None:
    """Remove a run's rows from the tables."""
    for table in BOARD_TABLES:
        connection.execute(f"DELETE FROM {table} WHERE run_id = ?", [run_id])
    connection.execute("DELETE FROM rank_tests WHERE leader = $1 OR run_id = $1", [run_id])


def insert_run(connection: duckdb.DuckDBPyConnection, folder: RunFolder) -> None:
    """Insert a run's rows into the tables, replacing rows of the same run."""
    manifest = folder.manifest()
    has_metrics = manifest.status in PLAYED and folder.metrics.is_file()
    is_finished = has_metrics and folder.table("rollouts").is_file()
    # A run that failed or was interrupted has a row with its status, and no metrics.
    metrics = folder.read_metrics() if is_finished else {"outcomes": {}, "metrics": []}
    if is_finished:
        folder.intact_table("rollouts")
    run_id = manifest.run_id
    remove_run(connection, run_id)
    saved_spec = read_saved_spec(folder)
    spec = json.dumps(saved_spec, sort_keys=True)
    row = [getattr(manifest, name) for name in _RUN_COLUMNS]
    names, training = ", ".join(_RUN_COLUMNS), manifest.training
    placeholders = ", ".join("?" * len(_RUN_COLUMNS))
    connection.execute(
        f"INSERT INTO runs ({names}, spec, outcomes, training) VALUES ({placeholders}, ?, ?, ?)",
        [*row, spec, json.dumps(metrics["outcomes"]), None if training is None else json.dumps(training)],
    )
    add_facts(connection, folder, saved_spec)
    connection.begin()  # without a transaction, each row would be written to disk separately
    for agent in manifest.agents:
        connection.execute(
            "INSERT INTO agents VALUES (?, ?, ?, ?, ?, ?, ?)",
            [run_id, *(agent[k] for k in ("agent", "role", "model_group", "provider", "model", "base_model"))],
        )
    keys = ("agent", "metric", "value", "stderr", "ci_low", "ci_high", "n", "clusters", "reason")
    if rows := metrics["metrics"] or _rating_rows(
        folder, is_rated=has_metrics and manifest.is_tournament
    ):  # one statement, since separate ones would take most of the time
        columns = [[row.get(name) if name == "reason" else row[name] for row in rows] for name in keys]
        connection.execute(
            f"INSERT INTO metrics (run_id, {', '.join(keys)}) SELECT ?, {', '.join(['unnest(?)'] * len(keys))}",
            [run_id, *columns],
        )
    connection.commit()
    if is_finished:
        _insert_rollouts(connection, folder)


def _rating_rows(folder: RunFolder, *, is_rated: bool) -> list[dict[str, Any]]:
    """Return the ratings of a tournament's players as rows of the table `metrics`; none for another run."""
    names = {"overall": "rating", "right": "rating_right", "wrong": "rating_wrong"}
    ratings = folder.read_metrics()["ratings"] if is_rated else []
    return [{**row, "agent": row["player"], "metric": names[row["side"]]} for row in ratings]


def fixed_verdicts_of(folder: RunFolder) -> str | None:
    """Return why a run's verdicts are not the answers of its verifier, such as `force_guess`; None if they are."""
    return explain_fixed_verdicts(saved_value(folder, "protocol", "force_guess"), verifiers_of(folder.manifest()))


def add_facts(
    connection: duckdb.DuckDBPyConnection, folder: RunFolder, saved: Mapping[str, object] | None = None
) -> None:
    """Fill the columns added after 0.1.0 in a run's row, and insert the run's datapoints.

    `saved` is the run's saved spec, if the caller has already read it.
    """
    from runner.results.stopping_rule import stopping_columns  # not at the top, since it imports NumPy

    manifest, spec = folder.manifest(), read_saved_spec(folder) if saved is None else saved
    metrics = folder.read_metrics() if folder.metrics.is_file() and manifest.status in PLAYED else {}
    group_by = look_up(spec, "dataset", "group_by")
    task = None if manifest.has_parts else _insert_datapoints(connection, folder, group_by)
    facts = {**_played_facts(manifest, spec), **_outcome_facts(metrics.get("outcomes", {}))}
    facts |= stopping_columns(spec, metrics)
    if task is not None:
        facts |= {
            "task": task.sha256,
            "dataset_content_sha256": task.dataset_content_sha256,
            "template_columns": task.template_columns,
            "earlier_task": task.earlier_sha256,
        }
    assignments = ", ".join(f'"{name}" = ?' for name in facts)
    connection.execute(f"UPDATE runs SET {assignments} WHERE run_id = ?", [*facts.values(), folder.run_id])


def _played_facts(manifest: Manifest, spec: Mapping[str, object]) -> dict[str, Any]:
    """Return the values of the columns about the selection of datapoints, the games, and the hashes of inputs."""
    selection = manifest.dataset_selection
    replay_of, until_round = manifest.replay_of or (_common_replay_source(spec), None)
    return {
        **{name: selection.get(name) for name in ("split", "filter", "limit", "balance", "shuffle")},
        "group_by": look_up(spec, "dataset", "group_by"),
        "point": format_point(manifest.point) or None,
        "per_datapoint": look_up(spec, "rollouts", "per_datapoint"),
        "responses_per_step": look_up(spec, "rollouts", "num_responses_per_timestep"),
        "max_transport_failed": look_up(spec, "rollouts", "max_transport_failed") or 0.0,
        "replay_of": replay_of,
        "replay_until_round": until_round,
        "fixed_verdicts": explain_fixed_verdicts(look_up(spec, "protocol", "force_guess"), verifiers_of(manifest)),
        "journal": manifest.journal,
        **{name: getattr(manifest, name) for name in NEW_TOKEN_CLASSES},
        "answers_from": None if manifest.answers_from is None else json.dumps(dict(manifest.origins.copied)),
        "rejudge_of": None if manifest.rejudge_of is None else manifest.rejudge_of.run_id,
        "analysis_of": manifest.analysis_of,
        "dataset_source_sha256": manifest.dataset_source_sha256,
        "prompts_sha256": tagged_hash("prompts", dict(manifest.prompts_sha256)),
        "protocol_sha256": manifest.protocol_sha256,
    }


def _outcome_facts(outcomes: Mapping[str, int]) -> dict[str, int | None]:
    """Return the number of rollouts with each outcome except `decided`; None if unknown."""
    names = [outcome.value for outcome in Outcome if outcome != Outcome.DECIDED]
    if not outcomes:
        return dict.fromkeys((*names, "failures"))
    failures = sum(outcomes.get(outcome, 0) for outcome in FAILURES)
    return {**{name: outcomes.get(name, 0) for name in names}, "failures": failures}


def _common_replay_source(spec: Mapping[str, Any]) -> str | None:
    """Return the run that all of a spec's agents replay; None if some do not replay, or they replay different runs."""
    models, agents = spec.get("models") or {}, spec.get("agents") or {}
    used = [models.get(look_up(agents, name, "model")) or {} for name in agents]
    runs = {
        Path(settings["run"]).name if traits_of(settings.get("provider")).needs_run and settings.get("run") else None
        for settings in used
    }
    return runs.pop() if len(runs) == 1 else None


def _insert_datapoints(connection: duckdb.DuckDBPyConnection, folder: RunFolder, group_by: str | None) -> Task | None:
    """Insert a run's datapoints and return its task. If its inputs cannot be read, insert none and return None."""
    connection.execute("DELETE FROM datapoints WHERE run_id = ?", [folder.run_id])

    def inserted_points() -> Iterator[PlayedDatapoint]:
        points = played_datapoints(folder, group_by)
        for batch in batches(
            points, MAX_DATAPOINTS, MAX_CHARACTERS, lambda point: sum(map(len, map(str, point.columns.values())))
        ):
            rows = [(p.id, p.group, p.label, p.content_sha256, canonical(p.columns).decode()) for p in batch]
            _allow_memory(connection, sum(len(row[-1].encode()) for row in rows))
            connection.execute(
                "INSERT INTO datapoints SELECT ?, unnest(?), unnest(?), unnest(?), unnest(?), unnest(?)",
                [folder.run_id, *map(list, zip(*rows, strict=True))],
            )
            yield from batch

    try:
        return Task.of_points(folder, inserted_points())
    except (OSError, ValueError):
        connection.execute("DELETE FROM datapoints WHERE run_id = ?", [folder.run_id])
        return None


def _insert_rollouts(connection: duckdb.DuckDBPyConnection, folder: RunFolder) -> None:
    """Copy a run's rollouts in pieces, so that memory does not grow with their number or their error messages."""
    path = duckdb_pattern(folder.intact_table("rollouts"))
    ranges = list(_row_ranges(connection, path))
    _allow_memory(connection, max((size for _, _, size in ranges), default=0))
    for first, end, _ in ranges:
        connection.execute(
            "INSERT INTO rollouts BY NAME SELECT * EXCLUDE (file_row_number) "
            "FROM read_parquet(?, file_row_number=true, hive_partitioning=false) WHERE file_row_number BETWEEN ? AND ?",
            [path, first, end - 1],
        )


def _allow_memory(connection: duckdb.DuckDBPyConnection, piece: int) -> None:
    """Raise the memory limit if it is too low for a piece of this many bytes."""
    if COPIES * piece > MEMORY:
        connection.execute(f"SET memory_limit = '{COPIES * piece}B'")


def _row_ranges(connection: duckdb.DuckDBPyConnection, path: str) -> Iterator[tuple[int, int, int]]:
    """Split a Parquet file into pieces of complete row groups: the first row, the row after the last, and the bytes."""
    groups = connection.execute(
        "SELECT row_group_num_rows, sum(total_uncompressed_size)::BIGINT FROM parquet_metadata(?) "
        "GROUP BY row_group_id, row_group_num_rows ORDER BY row_group_id",
        [path],
    ).fetchall()
    first = end = size = 0
    for rows, length in groups:
        if end > first and (end - first + rows > PIECE_ROWS or size + length > PIECE_BYTES):
            yield first, end, size
            first, size = end, 0
        end, size = end + rows, size + length
    if end > first:
        yield first, end, size
