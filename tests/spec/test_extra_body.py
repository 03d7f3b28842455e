"""What has a key of its own is refused in `extra_body`: the model on the wire is the model on the board."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from runner.api import run
from runner.base.errors import SpecError
from runner.models.extra_body import extra_body_problems
from runner.models.settings import ModelSettings
from runner.spec.datasets.settings import DatasetLimits, limits_for_saved_run
from runner.spec.loader import load_saved, load_spec
from tests.support.processes import nip_run_here
from tests.support.runs import only_run
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file


def problems(folder: Path, body: dict[str, Any], **settings: Any) -> list[str]:
    path = spec_file(folder, "http://127.0.0.1:1/v1", models={"m": {"extra_body": body, **settings}})
    with pytest.raises(SpecError) as caught:
        load_spec(path)
    assert all(problem.place.file == str(path) and problem.place.line == 1 for problem in caught.value.problems)
    return [f"{problem.key}: {problem.message}" for problem in caught.value.problems]


@pytest.mark.parametrize(
    "name",
    ["model", "n", "temperature", "top_p", "max_tokens", "max_completion_tokens", "seed", "stop", "reasoning_effort"],
)
def test_what_has_a_key_of_its_own_is_refused_with_that_key(tmp_path: Path, name: str) -> None:
    assert problems(tmp_path, {name: 1}) == [f"models.m.extra_body.{name}: this has its own key; set models.m.{name}"]


@pytest.mark.parametrize("name", ["messages", "stream", "stream_options"])
def test_what_the_runner_sets_is_refused(tmp_path: Path, name: str) -> None:
    assert "nip-run sets this key itself" in problems(tmp_path, {name: None})[0]


@pytest.mark.parametrize(
    "name",
    [
        "Model",
        "MODEL",
        "mODEL",
        "ſtream",
        "maxTokens",
        "max-tokens",
        "MaxCompletionTokens",
        " n ",
        "Messages",
        "ｍｏｄｅｌ",
        "ＭＯＤＥＬ",
        "𝐦𝐨𝐝𝐞𝐥",
        "max＿tokens",
    ],
)
def test_a_name_that_a_lenient_server_takes_for_it_is_refused(tmp_path: Path, name: str) -> None:
    assert len(problems(tmp_path, {name: 1})) == 1


@pytest.mark.parametrize(
    "name",
    [
        "models",
        "fallbacks",
        "model_list",
        "route",
        "mock_response",
        "lora_request",
        "adapter_id",
        "lora",
        "merged_adapters",
        "model_id",
        "deployment",
        "default_fallbacks",
        "api_base",
        "api_key",
    ],
)
def test_a_way_round_the_model_or_the_server_is_refused(tmp_path: Path, name: str) -> None:
    assert len(problems(tmp_path, {name: "other"})) == 1


def test_a_body_in_the_body_is_refused(tmp_path: Path) -> None:
    assert "one level up" in problems(tmp_path, {"extra_body": {"model": "other"}})[0]


@pytest.mark.parametrize(
    "name",
    ["best_of", "num_predict", "max_new_tokens", "max_output_tokens", "num_samples", "max_gen_len", "use_beam_search"],
)
def test_another_name_of_a_limit_is_refused_with_our_key(tmp_path: Path, name: str) -> None:
    assert "set models.m." in problems(tmp_path, {name: 9})[0]


def test_what_changes_the_price_needs_a_price(tmp_path: Path) -> None:
    assert "models.m.price" in problems(tmp_path, {"service_tier": "priority"})[0]
    price = {"input": 1.0, "output": 2.0}
    path = spec_file(
        tmp_path, "http://127.0.0.1:1/v1", models={"m": {"extra_body": {"service_tier": "flex"}, "price": price}}
    )
    assert load_spec(path).experiment.models["m"].extra_body == {"service_tier": "flex"}


@pytest.mark.parametrize("name", ["tier", "processing_tier", "speed"])
def test_another_name_of_a_tier_needs_a_price_too(tmp_path: Path, name: str) -> None:
    assert "models.m.price" in problems(tmp_path, {name: "priority"})[0]


PRICE = {"input": 1.0, "output": 2.0}
FUNCTION = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


@pytest.mark.parametrize("name", ["search_parameters", "enable_search", "web_search", "plugins"])
def test_what_is_billed_by_the_call_is_refused_at_any_price(tmp_path: Path, name: str) -> None:
    assert "servers bill this per call" in problems(tmp_path, {name: True}, price=PRICE)[0]


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    "tools",
    [
        [{"type": "web_search"}], [FUNCTION, {"type": "code_interpreter"}], [{"googleSearch": {}}], ["web_search"],
        {"type": "function"}, "web_search",
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["tools", "Tools"])
def test_a_tool_that_the_server_runs_is_refused_at_any_price(tmp_path: Path, name: str, tools: Any) -> None:
    assert "billed per call" in problems(tmp_path, {name: tools}, price=PRICE)[0]


def test_a_function_is_a_tool_without_a_price(tmp_path: Path) -> None:
    path = spec_file(tmp_path, "http://127.0.0.1:1/v1", models={"m": {"extra_body": {"tools": [FUNCTION, FUNCTION]}}})
    assert load_spec(path).experiment.models["m"].extra_body == {"tools": [FUNCTION, FUNCTION]}


def test_all_of_them_come_in_one_go(tmp_path: Path) -> None:
    assert len(problems(tmp_path, {"model": "x", "stream": True, "n": 4, "min_p": 0.1})) == 3


def test_what_has_no_key_goes_along(tmp_path: Path) -> None:
    body = {"chat_template_kwargs": {"enable_thinking": False}, "min_p": 0.1, "top_k": 5, "tools": [], "user": "u"}
    path = spec_file(tmp_path, "http://127.0.0.1:1/v1", models={"m": {"extra_body": body}})
    assert load_spec(path).experiment.models["m"].extra_body == body


def test_every_key_that_goes_on_the_wire_is_refused() -> None:
    """Also one that is added to the settings tomorrow."""
    settings = ModelSettings(
        model="x", temperature=1.0, top_p=1.0, n=1, seed=1, stop=("a",), max_tokens=1, max_completion_tokens=1,
        reasoning_effort="low", logprobs=True, top_logprobs=3,
    )  # fmt: skip
    names = [*settings.request_parameters, "model", "messages"]
    assert len(names) == 12
    assert [key for key, _ in extra_body_problems(dict.fromkeys(names), "m", priced=True)] == names
    ours = {field.name for field in fields(ModelSettings)} - {"provider", "run", "lineage"}
    once_only_here = {"service_tier", "prompt_cache_key"}
    problems_of_all = {key for key, _ in extra_body_problems(dict.fromkeys(ours), "m", priced=True)}
    assert problems_of_all == ours - once_only_here, "these two stay valid here, as in earlier specs"
    twice = extra_body_problems(dict.fromkeys(ours), "m", priced=True, keys=once_only_here)
    assert {key for key, _ in twice} == ours


# A run that was played before this was refused


@pytest.mark.full
def test_a_run_that_was_played_with_it_is_shown_and_not_gone_on_with(tmp_path: Path) -> None:
    with run_chat_server() as server:
        path = spec_file(tmp_path, server.base_url, size=2)
        spec = load_spec(path)
        models = {"m": replace(spec.experiment.models["m"], extra_body={"model": "other"})}
        run(replace(spec, experiment=replace(spec.experiment, models=models)), tmp_path / "results")
        done = only_run(tmp_path / "results")
        asked = server.requests
        for words in (
            ("runs",), ("show", done.name), ("show", done.name, "p0"), ("leaderboard", "--rebuild"), ("leaderboard",),
            ("export", done.name, "--format", "openai"),
        ):  # fmt: skip
            shown = nip_run_here(*words, cwd=tmp_path)
            assert shown.returncode == 0, shown.stderr
        path = spec_file(tmp_path, server.base_url, size=2, models={"m": {"extra_body": {"model": "other"}}})
        for again in (done / "spec.yaml", path):
            refused = nip_run_here(again, "--results", tmp_path / "results", cwd=tmp_path)
            assert refused.returncode == 2
            assert "models.m.extra_body.model: this has its own key; set models.m.model" in refused.stderr
        assert server.requests == asked


@pytest.mark.full
def test_a_run_whose_dataset_is_beyond_the_bound_of_today_is_shown(tmp_path: Path) -> None:
    spec = load_spec(spec_file(tmp_path, size=2))
    dataset = replace(spec.experiment.dataset, limits=DatasetLimits(bytes=10, rows=1, columns=1))
    run(replace(spec, experiment=replace(spec.experiment, dataset=dataset)), tmp_path / "results")
    name = only_run(tmp_path / "results").name
    for words in (("show", name, "p0"), ("export", name, "--format", "openai")):
        shown = nip_run_here(*words, cwd=tmp_path)
        assert shown.returncode == 0, shown.stderr


@pytest.mark.full
def test_a_saved_dataset_has_bounds_too_whatever_is_written_beside_it(tmp_path: Path) -> None:
    run(load_spec(spec_file(tmp_path, size=2)), tmp_path / "results")
    folder = only_run(tmp_path / "results")
    data = folder / "inputs" / "dataset.jsonl"
    rows = [json.loads(line) for line in data.read_text().splitlines()]
    data.write_text("".join(json.dumps({**row, **{f"c{n}": 1 for n in range(8_100)}}) + "\n" for row in rows))
    with pytest.raises(SpecError, match=r"columns or more, more than dataset\.limits\.columns \(8,000\)"):
        load_saved(folder / "spec.yaml")
    most = limits_for_saved_run(DatasetLimits(bytes=2**62, rows=2**62, columns=2**62))
    assert (most.bytes, most.rows, most.columns) == (64 << 30, 10**9, 10**6)
    own = DatasetLimits(bytes=10 << 30, rows=10**8, columns=10**5)
    assert limits_for_saved_run(own) == own
    assert limits_for_saved_run(DatasetLimits(bytes=1)).bytes == 2 << 30
