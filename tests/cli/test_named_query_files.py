"""The shipped query files: each is listed, documented and tested, and errors say what to write instead."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

from runner import query, run
from runner.base import package_data
from runner.base.errors import LeaderboardError, UsageError
from runner.cli.main import main
from runner.results.leaderboard.named_queries import named_queries
from runner.results.leaderboard.results_folder import Results
from runner.statistics.calibration import Forecasts
from tests.cli.test_named_queries import run_query
from tests.results.comparison.planted import write_solo_spec
from tests.support.runs import run_spec, table
from tests.support.specs import spec_file

TESTED = [
    "accuracy_by_round", "always_failed", "analysis_rates", "confusion", "cost_per_right_verdict", "flips", "hardest",
    "judges", "learning_curve", "longest_games", "position_bias", "protocols", "reliability", "retry_reasons", "seeds",
    "stances", "tokens_by_agent", "uplift", "verdict_moves", "worst_prover",
]  # fmt: skip


@pytest.mark.full
def test_shipped_queries_are_listed_documented_and_tested(tmp_path: Path) -> None:
    shipped_queries = named_queries(Results(tmp_path))
    assert (
        [shipped_query.name for shipped_query in shipped_queries]
        == TESTED
        == sorted(path.stem for path in package_data.queries().iterdir())
    )
    stdout = StringIO()
    with redirect_stdout(stdout):
        assert main(["sql", "@", "--results", str(tmp_path)]) == 0
    for shipped_query in shipped_queries:
        assert shipped_query.about.endswith((".", "?"))
        assert f"@{shipped_query.name} " in stdout.getvalue()
        assert set(find_parameter_names(shipped_query.sql)) == {
            parameter.name for parameter in shipped_query.parameters
        }
        assert "-- Columns: " in shipped_query.sql
        if all(parameter.default is not None for parameter in shipped_query.parameters):
            assert query(f"@{shipped_query.name}", tmp_path).fetchall() == []  # works on an empty folder, too
    listed: object = run_query(tmp_path, "--list")
    assert isinstance(listed, dict)
    assert list(listed) == TESTED


def find_parameter_names(sql: str) -> list[str]:
    body = "\n".join(line for line in sql.splitlines() if not line.startswith("--"))
    return re.findall(r"\$(\w+)", body)


def error_message_of(call: Callable[[], Any]) -> str:
    with pytest.raises(UsageError) as caught:
        call()
    return str(caught.value)


def test_query_errors_say_what_to_write_instead(tmp_path: Path) -> None:
    assert error_message_of(lambda: query("@flip", tmp_path)) == "no query '@flip'; did you mean '@flips'?"
    assert error_message_of(lambda: query("@zzz", tmp_path)) == "no query '@zzz'; list all with `nip-run sql @`"
    message = error_message_of(lambda: query("@flips", tmp_path, run_a="nobody", runb="x"))
    assert "no run 'nobody'" in message
    assert "runb: no parameter of @flips; did you mean 'run_b'?" in message
    assert "@flips needs run_b=RUN: the second run" in message
    assert (
        error_message_of(lambda: query("@hardest", tmp_path, limit="many"))
        == "limit=many: 'many' is not a number; write limit=NUMBER"
    )
    for name, parameter in (("hardest", "benchmark"), ("uplift", "baseline"), ("seeds", "name")):
        message = error_message_of(partial(query, f"@{name}", tmp_path, **{parameter: "typo"}))
        assert message.startswith(f"{parameter}=typo: no ")
        assert message.endswith(f" of this name in {tmp_path}; there are none")
    assert "cannot read" in error_message_of(lambda: query("@./none.sql", tmp_path))
    stderr = StringIO()
    with redirect_stderr(stderr):
        assert main(["sql", "@flips", "last", "--results", str(tmp_path)]) == 2
    assert "'last' is not a parameter; write NAME=VALUE" in stderr.getvalue()


@pytest.mark.full
def test_unknown_names_and_a_missing_leaderboard_are_errors_not_empty_results(tmp_path: Path) -> None:
    run(spec_file(tmp_path, size=2, fine_tune=None), tmp_path / "results", run_id="one")
    results = tmp_path / "results"
    message = error_message_of(lambda: query("@confusion", results, run="one", by="label"))
    assert message == "by=label: no column of this name in the datasets of one; choose one of: question, solution"
    assert error_message_of(lambda: query("@hardest", results, benchmark="tiny/v2")).endswith(
        "; did you mean 'tiny/v1'?"
    )
    assert len(query("@confusion", results, run="one", by="question").fetchall()) == 2
    Results(results).board.path.unlink()
    for sql in ("@uplift", "FROM comparisons"):
        with pytest.raises(
            LeaderboardError, match=r"needs the leaderboard, which is missing for 1 run in .*: nip-run leaderboard"
        ):
            query(sql, results)
    assert query("SELECT count(*) FROM completions", results).fetchall()[0][0] > 0


def test_flips_pair_games_with_equal_stances_and_seats(tmp_path: Path) -> None:
    agents = {"prover": None, "prover0": {"model": "m"}, "prover1": {"model": "n"}}
    spec = spec_file(
        tmp_path, size=8, protocol={"use": "debate"}, prompts="prompts/code_validation/debate", agents=agents,
        models={"n": {"provider": "dummy", "answer_words": 5}}, stances="both", seats="swap", fine_tune=None,
    )  # fmt: skip
    results = tmp_path / "results"
    runs = [run_spec(spec, results, f"seed={seed}") for seed in (0, 1)]
    assert query("@flips", results, run_a=runs[0].run_id, run_b=runs[0].run_id).fetchall() == []
    verdicts = [
        {(row["datapoint_id"], row["stances_exchanged"], row["swapped"]): row for row in table(played.path, "rollouts")}
        for played in runs
    ]
    assert [len(games) for games in verdicts] == [32, 32]
    flipped = {
        tuple(games[key]["rollout_id"] for games in verdicts)
        for key in verdicts[0]
        if verdicts[0][key]["decision"] != verdicts[1][key]["decision"]
    }
    rows = query("@flips", results, run_a=runs[0].run_id, run_b=runs[1].run_id).fetchall()
    assert flipped
    assert {row[-2:] for row in rows} == flipped
    assert len(rows) == len(flipped)


def test_games_without_labels_count_as_neither_right_nor_wrong(tmp_path: Path) -> None:
    spec = write_solo_spec(tmp_path, size=3, rollouts={"per_datapoint": 2})
    data = tmp_path / "data.jsonl"
    rows = [{**json.loads(line), "label": None} for line in data.read_text().splitlines()]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    results = tmp_path / "results"
    run_id = run_spec(spec, results).run_id
    for name in ("accuracy_by_round", "confusion", "protocols"):
        parameters = {} if name == "protocols" else {"run": run_id}
        shown = query(f"@{name}", results, **parameters).df()
        assert len(shown) == 1
        assert shown["accuracy"].isna().all(), name
    assert query("@cost_per_right_verdict", results).df()["right"].isna().all()
    for name in ("hardest", "always_failed", "uplift"):
        assert query(f"@{name}", results).fetchall() == [], name


def test_reliability_query_puts_the_mean_of_votes_in_the_bin_of_the_run_metrics() -> None:
    p = math.fsum((0.75, 0.8, 0.85)) / 3  # 0.8 less a rounding error
    (expected_bin,) = Forecasts(np.array([p]), np.array([1]), np.array([0]), 1).curve
    connection = duckdb.connect()
    connection.execute(
        "CREATE TABLE rollouts AS SELECT 'r' AS run_id, 1 AS y, $p::DOUBLE AS confidence_stated, "
        "NULL::DOUBLE AS confidence_logprob, 'decided' AS outcome",
        {"p": p},
    )
    sql = (package_data.queries() / "reliability.sql").read_text()
    ((_, low, *_),) = connection.execute(sql, {"kind": "stated", "run": None}).fetchall()
    assert low == expected_bin.low == 0.8
