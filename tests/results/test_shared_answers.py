"""The leaderboard's view `copies`, which compares each run with only two of the similar runs."""

from __future__ import annotations

import random
from typing import Any

import pytest

from runner.base.storage.duckdb_connections import connect
from runner.results.leaderboard.schema import definitions_sql

_RUN = """
INSERT INTO runs BY NAME
SELECT $run AS run_id, 'benchmark' AS kind, $status AS status, $rollouts AS rollouts, 0 AS transport_failed,
    $journal AS journal, $copied AS answers_from, $task AS task, 'b' AS benchmark, $day::TIMESTAMP AS started_at,
    $published AS published, '{}' AS outcomes
"""


def random_run(number: int, rng: random.Random) -> dict[str, Any]:
    copied = [f'"{name}": {rng.choice([2, 4])}' for name in rng.sample(["j1", "j2", "r0", "r1"], rng.randrange(3))]
    return {
        "run": f"r{number}", "status": rng.choice(["done", "done", "failed"]), "rollouts": rng.choice([4, 6]),
        "journal": rng.choice([None, "j1", "j2", f"j-{number}"]), "copied": f"{{{', '.join(copied)}}}",
        "task": rng.choice(["t", "t", "u"]), "day": f"2026-01-0{rng.randrange(1, 4)}",
        "published": rng.choice([None, 1, 2]),
    }  # fmt: skip


@pytest.mark.sample(2)
@pytest.mark.parametrize("seed", range(5))
def test_copies_view_equals_the_comparison_of_all_pairs(seed: int) -> None:
    rng = random.Random(seed)
    runs = {f"r{number}": random_run(number, rng) for number in range(16)}
    with connect() as board:
        board.execute(definitions_sql())
        for run in runs.values():
            board.execute(_RUN, run)
        board.execute("INSERT INTO metrics BY NAME SELECT run_id, 'accuracy' AS metric, 0.5 AS value FROM runs")
        pairs = board.execute("SELECT * FROM shared_answers").fetchall()
        copies = board.execute("SELECT run_id, source, shared FROM copies").fetchall()
        shared = board.execute("SELECT run_id, shared FROM leaderboard WHERE reason IS NULL").fetchall()

    def precedence(name: str, own_share: float) -> tuple[Any, ...]:
        published = runs[name]["published"]
        return (-1 if published is None else published, -own_share, runs[name]["day"], name)

    expected: dict[str, tuple[Any, ...]] = {}
    most = dict.fromkeys(runs, 0)
    for name, source, count, verdicts, own_share, source_own_share in pairs:
        most[name] = max(most[name], count)
        rank = precedence(source, source_own_share)
        is_ranked = runs[source]["status"] == "done" and runs[name]["task"] == runs[source]["task"]
        if count * 2 > verdicts and is_ranked and rank < precedence(name, own_share):
            expected[name] = min(expected.get(name, (rank, source, count)), (rank, source, count))
    assert sorted(copies) == sorted((name, source, count) for name, (_, source, count) in expected.items())
    assert expected
    assert all((count or 0) == most[name] for name, count in shared)
