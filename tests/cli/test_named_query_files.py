"""The kept questions themselves: what is shipped is listed and documented, and mistakes are told."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from runner.api import query, run
from runner.base import package_data
from runner.base.errors import LeaderboardError, UsageError
from runner.cli.main import main
from runner.results.leaderboard.named_queries import named_queries
from runner.results.leaderboard.results_folder import Results
from tests.cli.test_named_queries import run_query
from tests.support.specs import spec_file

TESTED = [
    "accuracy_by_round", "always_failed", "analysis_rates", "confusion", "cost_per_right_verdict", "flips", "hardest",
    "judges", "learning_curve", "longest_games", "position_bias", "protocols", "reliability", "retry_reasons", "seeds",
    "stances", "tokens_by_agent", "uplift", "verdict_moves", "worst_prover",
]  # fmt: skip


@pytest.mark.full
def test_all_that_are_shipped_are_listed_documented_and_tested(tmp_path: Path) -> None:
    shipped = named_queries(Results(tmp_path))
    assert [one.name for one in shipped] == TESTED == sorted(path.stem for path in package_data.queries().iterdir())
    out = StringIO()
    with redirect_stdout(out):
        assert main(["sql", "@", "--results", str(tmp_path)]) == 0
    for one in shipped:
        assert one.about.endswith((".", "?"))
        assert f"@{one.name} " in out.getvalue()
        assert set(re_names(one.sql)) == {parameter.name for parameter in one.parameters}
        assert "-- Columns: " in one.sql
        if all(parameter.default is not None for parameter in one.parameters):
            assert query(f"@{one.name}", tmp_path).fetchall() == []  # of an empty folder, too
    listed: object = run_query(tmp_path, "--list")
    assert isinstance(listed, dict)
    assert list(listed) == TESTED


def re_names(sql: str) -> list[str]:
    body = "\n".join(line for line in sql.splitlines() if not line.startswith("--"))
    return re.findall(r"\$(\w+)", body)


def refused(call: Callable[[], Any]) -> str:
    with pytest.raises(UsageError) as caught:
        call()
    return str(caught.value)


def test_mistakes_are_told_with_what_to_write(tmp_path: Path) -> None:
    assert refused(lambda: query("@flip", tmp_path)) == "no query '@flip'; did you mean '@flips'?"
    assert refused(lambda: query("@zzz", tmp_path)) == "no query '@zzz'; list all with `nip-run sql @`"
    said = refused(lambda: query("@flips", tmp_path, run_a="nobody", runb="x"))
    assert "no run 'nobody'" in said
    assert "runb: no parameter of @flips; did you mean 'run_b'?" in said
    assert "@flips needs run_b=RUN: the other" in said
    assert (
        refused(lambda: query("@hardest", tmp_path, limit="many"))
        == "limit=many: 'many' is not a number; write limit=NUMBER"
    )
    for name, parameter in (("hardest", "benchmark"), ("uplift", "baseline"), ("seeds", "name")):
        said = refused(lambda name=name, parameter=parameter: query(f"@{name}", tmp_path, **{parameter: "typo"}))  # type: ignore[misc]
        assert said.startswith(f"{parameter}=typo: no ")
        assert said.endswith(f" of this name in {tmp_path}; there are none")
    assert "cannot read" in refused(lambda: query("@./none.sql", tmp_path))
    err = StringIO()
    with redirect_stderr(err):
        assert main(["sql", "@flips", "last", "--results", str(tmp_path)]) == 2
    assert "'last' is not a parameter; write NAME=VALUE" in err.getvalue()


@pytest.mark.full
def test_a_name_that_the_board_lacks_and_a_missing_board_are_no_empty_answers(tmp_path: Path) -> None:
    run(spec_file(tmp_path, size=2, fine_tune=None), tmp_path / "results", run_id="one")
    here = tmp_path / "results"
    said = refused(lambda: query("@confusion", here, run="one", by="label"))
    assert said == "by=label: no column of this name in the datasets of one; choose one of: question, solution"
    assert refused(lambda: query("@hardest", here, benchmark="tiny/v2")).endswith("; did you mean 'tiny/v1'?")
    assert len(query("@confusion", here, run="one", by="question").fetchall()) == 2
    Results(here).board.path.unlink()
    for asked_ in ("@uplift", "FROM comparisons"):
        with pytest.raises(
            LeaderboardError, match=r"needs the leaderboard, which is missing for 1 run in .*: nip-run leaderboard"
        ):
            query(asked_, here)
    assert query("SELECT count(*) FROM completions", here).fetchall()[0][0] > 0
