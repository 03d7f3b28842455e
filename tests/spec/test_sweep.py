"""Sweeps as a grid, as zipped lists and as a list of points, also over several protocols."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import SpecError
from runner.rollouts.plan import Plan
from runner.rollouts.run_plan import sweep_problems
from runner.spec.loader import load_spec, load_specs
from tests.support.specs import spec_file

NIP, DEBATE = "prompts/code_validation/nip", "prompts/code_validation/debate"


def load_points(folder: Path, sweep: Any, **changes: Any) -> list[dict[str, Any]]:
    return [dict(spec.point) for spec in load_specs(spec_file(folder, size=2, sweep=sweep, **changes))]


def test_zipped_lists_advance_together_and_combine_with_the_grid(tmp_path: Path) -> None:
    sweep = {"seed": [1, 2], "zip": {"rollouts.concurrency": [3, 4], "description": ["a", "b"]}}
    assert load_points(tmp_path, sweep) == [
        {"seed": seed, "rollouts.concurrency": concurrency, "description": text}
        for seed in (1, 2)
        for concurrency, text in ((3, "a"), (4, "b"))
    ]


def test_list_of_points_is_used_unchanged(tmp_path: Path) -> None:
    sweep = [{"seed": 1}, {"seed": 2, "agents.prover.max_response_words": 9}]
    assert load_points(tmp_path, sweep) == sweep


@pytest.mark.parametrize("form", ["zip", "points"])
def test_a_sweep_crosses_protocols(tmp_path: Path, form: str) -> None:
    names, prompts = ["nip", "debate"], [NIP, DEBATE]
    sweep: Any = {"zip": {"protocol.use": names, "prompts": prompts}}
    if form == "points":
        sweep = [{"protocol.use": name, "prompts": path} for name, path in zip(names, prompts, strict=True)]
    agents = {"prover": None, "_default": {"model": "m", "max_response_words": 90}}
    specs = load_specs(spec_file(tmp_path, size=2, sweep=sweep, agents=agents))
    assert [(spec.protocol.name, sorted(spec.experiment.agents)) for spec in specs] == [
        ("nip", ["prover", "verifier"]), ("debate", ["prover0", "prover1", "verifier"]),
    ]  # fmt: skip
    assert all(spec.experiment.agents["verifier"].max_response_words == 90 for spec in specs)
    assert len({Plan(spec).run_id for spec in specs}) == 2


def test_default_agent_gives_the_same_run_as_agents_written_in_full(tmp_path: Path) -> None:
    agent = {"model": "m", "max_response_words": 90}
    full = Plan(load_spec(spec_file(tmp_path, agents={"prover": agent, "verifier": {**agent, "freeze": True}})))
    agents = {"_default": agent, "prover": None, "verifier": {"model": "m", "freeze": True}}
    filled = Plan(load_spec(spec_file(tmp_path, agents=agents)))
    assert (filled.run_id, filled.spec.experiment) == (full.run_id, full.spec.experiment)


def test_sweep_points_have_the_run_ids_of_single_specs(tmp_path: Path) -> None:
    run_ids = [Plan(load_spec(spec_file(tmp_path, seed=seed))).run_id for seed in (1, 2)]
    for sweep in ({"zip": {"seed": [1, 2]}}, [{"seed": 1}, {"seed": 2}], {"seed": [1, 2]}):
        assert [Plan(spec).run_id for spec in load_specs(spec_file(tmp_path, sweep=sweep))] == run_ids


def test_sweep_point_may_remove_an_agent(tmp_path: Path) -> None:
    sweep = [
        {"protocol.use": "solo_verifier", "agents.prover": None, "prompts": "prompts/code_validation/solo_verifier"}
    ]
    (spec,) = load_specs(spec_file(tmp_path, sweep=sweep, protocol={"use": "nip", "max_message_rounds": None}))
    assert list(spec.experiment.agents) == ["verifier"]


@pytest.mark.parametrize(
    ("sweep", "message"),
    [
        ({"zip": {"seed": [1, 2], "description": ["a"]}}, "sweep.zip.description: 1 value, but another list"),
        (
            {"seed": [1], "zip": {"seed": [1]}},
            "sweep.zip.seed: the grid also sweeps over this key; remove one of the two",
        ),
        ({"zip": {"seed": 1}}, "sweep.zip.seed: expected a list, not 1"),
        ([], "sweep: must not be empty"),
        ([{"seed": 1}, 3], "sweep.1: expected a mapping (KEY: VALUE lines), not 3"),
        ([{"sed": 1}], "sed: unknown key; did you mean 'seed'?"),
        ({"sweep": [{"seed": [1]}]}, "sweep: a sweep cannot set 'sweep'; write all lists of values in one sweep"),
        ([{"sweep.seed": [1, 2]}], "sweep: a sweep cannot set 'sweep.seed'"),
        (3, "sweep: expected a mapping (KEY: VALUE lines) or a list, not 3"),
    ],
    ids=str,
)
def test_invalid_sweep_gives_one_problem(tmp_path: Path, sweep: Any, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_specs(spec_file(tmp_path, size=2, sweep=sweep))
    (problem,) = caught.value.problems
    assert message in str(problem)


def test_sweep_points_that_are_the_same_run_are_refused(tmp_path: Path) -> None:
    plans = [Plan(s) for s in load_specs(spec_file(tmp_path, sweep=[{"seed": 1}, {"seed": 1, "description": "x"}]))]
    assert [problem.key for problem in sweep_problems("spec.yaml", plans)] == ["sweep.description"]


def test_repeated_sweep_value_is_reported_at_its_position(tmp_path: Path) -> None:
    path = spec_file(tmp_path)
    (tmp_path / "mine.yaml").write_text(f"extends: {path.name}\nsweep:\n  seed: [1, 2, 1]\n  description: [a, b]\n")
    problems = list(sweep_problems("mine.yaml", [Plan(spec) for spec in load_specs(tmp_path / "mine.yaml")]))
    assert (
        "mine.yaml:3:16: sweep.seed: the value 1 is in the sweep twice, and both points would be the same run; "
        "remove one of them" in {str(problem).removeprefix(f"{tmp_path}/") for problem in problems}
    )
    assert any(
        problem.place.line == 4 and "('a' and 'b') would all be the same run" in problem.message for problem in problems
    )


def test_renamed_key_is_accepted_in_every_form_of_sweep(tmp_path: Path) -> None:
    for sweep in ({"zip": {"rollouts.most_calls": [7]}}, [{"rollouts.most_calls": 7}]):
        assert load_points(tmp_path, sweep) == [{"rollouts.max_calls": 7}]


# The default agent


def test_mistake_in_the_default_agent_is_reported_once_at_its_key(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        load_spec(spec_file(tmp_path, agents={"_default": {"model": "nope", "max_response_words": "x"}, "prover": None,
                                              "verifier": None}))  # fmt: skip
    assert sorted(problem.key for problem in caught.value.problems) == [
        "agents._default.max_response_words", "agents._default.model",
    ]  # fmt: skip


def test_override_of_the_default_agent_without_effect_is_refused(tmp_path: Path) -> None:
    path = spec_file(tmp_path)
    with pytest.raises(SpecError, match=r"agents\._default\.model: every agent has its own model"):
        load_spec(path, ["agents._default.model=m"])
    assert load_spec(path, ["agents._default.max_response_words=9"]).experiment.agents["prover"].max_response_words == 9
