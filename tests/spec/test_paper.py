"""The specs of the paper's experiments are valid, play offline with one override, and accept the paper's problems."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runner import query, run
from runner.models.api_keys import KeyUse
from runner.spec.loader import load_specs
from runner.spec.warnings.catalog import warnings_of
from runner.training.key_usage import key_uses_of
from runner.training.plan import plan_of
from tests.support.paths import ROOT

PAPER = ROOT / "specs" / "paper"
SPECS = sorted(path.stem for path in PAPER.glob("*.yaml"))
OFFLINE = "models.verifier.provider=dummy"
ONE_SEED = "sweep.seed=[8144]"


def key_uses_of_points(name: str, *overrides: str) -> list[KeyUse]:
    """Return the API keys that the points of a spec use."""
    return [
        use for spec in load_specs(f"paper/{name}.yaml", [ONE_SEED, *overrides]) for use in key_uses_of(plan_of(spec))
    ]


@pytest.mark.full
def test_paper_specs_share_the_base_and_need_only_an_openai_key() -> None:
    spec_by_run: dict[str, str] = {}
    for name in SPECS:
        points = load_specs(f"paper/{name}.yaml", ONE_SEED)
        for spec in points:
            assert spec.experiment.benchmark == "neural-interactive-proofs/code-validation"
            # OpenAI shuts down the paper's models in 2027.
            assert [warning for warning in warnings_of(spec) if "deprecations" not in warning] == []
            assert [str(use) for use in key_uses_of(plan_of(spec))] == ["OPENAI_API_KEY -> api.openai.com"]
            spec_by_run.setdefault(plan_of(spec).run_id, name)
    # A point of two specs is one run: both have the point nip.
    assert len(SPECS) == 13
    assert len(spec_by_run) == 28 - 2


@pytest.mark.parametrize(
    "name", [name if name == "stances_nip" else pytest.param(name, marks=pytest.mark.full) for name in SPECS]
)
def test_offline_override_makes_keys_unnecessary(name: str) -> None:
    assert key_uses_of_points(name, OFFLINE) == []


@pytest.mark.full
def test_the_untrained_protocols_play_offline(tmp_path: Path) -> None:
    for spec in load_specs("paper/untrained.yaml", [OFFLINE, ONE_SEED, "dataset.limit=2", "rollouts.per_datapoint=1"]):
        assert key_uses_of(plan_of(spec)) == ()
        run(spec, tmp_path)
    rows = query("@protocols", tmp_path).project("protocol, games").fetchall()
    assert sorted(rows) == [(name, 2) for name in ("adp", "debate", "merlin_arthur", "mnip", "nip", "solo_verifier")]
    assert query("@uplift", tmp_path).project("protocol").aggregate("count(*)").fetchall() == [(5,)]


@pytest.mark.full
def test_every_problem_is_played_with_both_stances(tmp_path: Path) -> None:
    (spec,) = load_specs("paper/stances_nip.yaml", [OFFLINE, ONE_SEED, "dataset.limit=4"])
    result = run(spec, tmp_path)
    rows = query("@stances", tmp_path).project("stance, y, games").fetchall()
    assert sorted(rows) == [(stance, y, 2 * 5) for stance in (0, 1) for y in (0, 1)]
    assert {"persuasion_0", "persuasion_1"} <= {row["metric"] for row in result.metrics["metrics"]}


@pytest.mark.full
def test_file_in_the_buggy_apps_format_replaces_the_problems(tmp_path: Path) -> None:
    rows = [
        {
            "question": f"q{n}", "difficulty": "competition" if n == 3 else "interview", "split": "test",
            "solutions": [{"solution": f"right {n}"}], "buggy_solutions": [{"solution": f"wrong {n}"}],
        }
        for n in range(4)
    ]  # fmt: skip
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    mine = tmp_path / "mine.yaml"
    mine.write_text("extends: [paper/untrained_nip.yaml, base/paper/buggy_apps.yaml]\ndataset: {path: rows.jsonl}\n")
    (spec,) = load_specs(mine, [OFFLINE, ONE_SEED])
    assert [(point.label, point.group) for point in spec.dataset.datapoints].count((1, "row-1")) == 1
    assert len(spec.dataset.datapoints) == 6
    assert len({point.group for point in spec.dataset.datapoints}) == 3
