"""`extra_body` refuses parameters with their own key, so that the recorded model is the requested model."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from runner import run
from runner.base.errors import SpecError
from runner.models.extra_body import extra_body_problems
from runner.models.settings import ModelSettings
from runner.spec.datasets.settings import DatasetLimits, limits_for_saved_run
from runner.spec.loader import load_saved, load_spec
from tests.support.processes import nip_run_here
from tests.support.runs import only_run
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file


def load_problems(folder: Path, body: dict[str, Any], **settings: Any) -> list[str]:
    path = spec_file(folder, "http://127.0.0.1:1/v1", models={"m": {"extra_body": body, **settings}})
    with pytest.raises(SpecError) as caught:
        load_spec(path)
    assert all(problem.place.file == str(path) and problem.place.line == 1 for problem in caught.value.problems)
    return [f"{problem.key}: {problem.message}" for problem in caught.value.problems]


@pytest.mark.parametrize(
    "name",
    ["model", "n", "temperature", "top_p", "max_tokens", "max_completion_tokens", "seed", "stop", "reasoning_effort"],
)
def test_parameter_that_has_its_own_key_is_refused_with_that_key(tmp_path: Path, name: str) -> None:
    assert load_problems(tmp_path, {name: 1}) == [
        f"models.m.extra_body.{name}: this has its own key; set models.m.{name}"
    ]


@pytest.mark.parametrize("name", ["messages", "stream", "stream_options"])
def test_parameter_that_the_runner_sets_is_refused(tmp_path: Path, name: str) -> None:
    assert "nip-run sets this key itself" in load_problems(tmp_path, {name: None})[0]


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
def test_spelling_that_a_lenient_server_would_accept_is_refused(tmp_path: Path, name: str) -> None:
    assert len(load_problems(tmp_path, {name: 1})) == 1


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
def test_parameter_that_selects_another_model_or_server_is_refused(tmp_path: Path, name: str) -> None:
    assert len(load_problems(tmp_path, {name: "other"})) == 1


def test_nested_extra_body_is_refused(tmp_path: Path) -> None:
    assert "one level up" in load_problems(tmp_path, {"extra_body": {"model": "other"}})[0]


@pytest.mark.parametrize(
    "name",
    ["best_of", "num_predict", "max_new_tokens", "max_output_tokens", "num_samples", "max_gen_len", "use_beam_search"],
)
def test_another_name_of_a_limit_is_refused_with_the_specs_key(tmp_path: Path, name: str) -> None:
    assert "set models.m." in load_problems(tmp_path, {name: 9})[0]


def test_parameter_that_changes_the_price_needs_a_price(tmp_path: Path) -> None:
    assert "models.m.price" in load_problems(tmp_path, {"service_tier": "priority"})[0]
    price = {"input": 1.0, "output": 2.0}
    path = spec_file(
        tmp_path, "http://127.0.0.1:1/v1", models={"m": {"extra_body": {"service_tier": "flex"}, "price": price}}
    )
    assert load_spec(path).experiment.models["m"].extra_body == {"service_tier": "flex"}


@pytest.mark.parametrize("name", ["tier", "processing_tier", "speed"])
def test_other_names_of_a_service_tier_need_a_price(tmp_path: Path, name: str) -> None:
    assert "models.m.price" in load_problems(tmp_path, {name: "priority"})[0]


PRICE = {"input": 1.0, "output": 2.0}
FUNCTION = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


@pytest.mark.parametrize("name", ["search_parameters", "enable_search", "web_search", "plugins"])
def test_parameter_billed_per_call_is_refused_at_any_price(tmp_path: Path, name: str) -> None:
    assert "servers bill this per call" in load_problems(tmp_path, {name: True}, price=PRICE)[0]


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    "tools",
    [
        [{"type": "web_search"}], [FUNCTION, {"type": "code_interpreter"}], [{"googleSearch": {}}], ["web_search"],
        {"type": "function"}, "web_search",
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["tools", "Tools"])
def test_tool_that_the_server_runs_is_refused_at_any_price(tmp_path: Path, name: str, tools: Any) -> None:
    assert "billed per call" in load_problems(tmp_path, {name: tools}, price=PRICE)[0]


def test_function_tools_need_no_price(tmp_path: Path) -> None:
    path = spec_file(tmp_path, "http://127.0.0.1:1/v1", models={"m": {"extra_body": {"tools": [FUNCTION, FUNCTION]}}})
    assert load_spec(path).experiment.models["m"].extra_body == {"tools": [FUNCTION, FUNCTION]}


def test_all_refused_parameters_are_reported_together(tmp_path: Path) -> None:
    assert len(load_problems(tmp_path, {"model": "x", "stream": True, "n": 4, "min_p": 0.1})) == 3


def test_parameters_without_their_own_key_are_accepted(tmp_path: Path) -> None:
    body = {"chat_template_kwargs": {"enable_thinking": False}, "min_p": 0.1, "top_k": 5, "tools": [], "user": "u"}
    path = spec_file(tmp_path, "http://127.0.0.1:1/v1", models={"m": {"extra_body": body}})
    assert load_spec(path).experiment.models["m"].extra_body == body


def test_every_request_parameter_of_the_settings_is_refused() -> None:
    """Includes keys that are added to the settings later."""
    settings = ModelSettings(
        model="x", temperature=1.0, top_p=1.0, n=1, seed=1, stop=("a",), max_tokens=1, max_completion_tokens=1,
        reasoning_effort="low", logprobs=True, top_logprobs=3,
    )  # fmt: skip
    names = [*settings.request_parameters, "model", "messages"]
    assert len(names) == 12
    assert [key for key, _ in extra_body_problems(dict.fromkeys(names), "m", priced=True)] == names
    setting_names = {field.name for field in fields(ModelSettings)} - {"provider", "run", "lineage"}
    accepted_here = {"service_tier", "prompt_cache_key"}
    refused_names = {key for key, _ in extra_body_problems(dict.fromkeys(setting_names), "m", priced=True)}
    assert refused_names == setting_names - accepted_here, "these two stay valid here, as in earlier specs"
    problems_with_duplicates = extra_body_problems(dict.fromkeys(setting_names), "m", priced=True, keys=accepted_here)
    assert {key for key, _ in problems_with_duplicates} == setting_names


# Runs played before the refusal was introduced


@pytest.mark.full
def test_old_run_with_a_refused_parameter_can_be_shown_but_not_resumed(tmp_path: Path) -> None:
    with run_chat_server() as server:
        path = spec_file(tmp_path, server.base_url, size=2)
        spec = load_spec(path)
        models = {"m": replace(spec.experiment.models["m"], extra_body={"model": "other"})}
        run(replace(spec, experiment=replace(spec.experiment, models=models)), tmp_path / "results")
        done = only_run(tmp_path / "results")
        # The commands do not check the spec again, because the manifest has its hash. A downloaded run is checked.
        assert load_saved(done / "spec.yaml").experiment.models["m"].extra_body == {"model": "other"}
        requests_before = server.requests
        for arguments in (
            ("runs",), ("show", done.name), ("show", done.name, "p0"), ("leaderboard", "--rebuild"), ("leaderboard",),
            ("export", done.name, "--format", "openai"),
        ):  # fmt: skip
            completed = nip_run_here(*arguments, cwd=tmp_path)
            assert completed.returncode == 0, completed.stderr
        path = spec_file(tmp_path, server.base_url, size=2, models={"m": {"extra_body": {"model": "other"}}})
        for spec_path in (done / "spec.yaml", path):
            refused = nip_run_here(spec_path, "--results", tmp_path / "results", cwd=tmp_path)
            assert refused.returncode == 2
            assert "models.m.extra_body.model: this has its own key; set models.m.model" in refused.stderr
        assert server.requests == requests_before


@pytest.mark.full
def test_old_run_whose_dataset_exceeds_the_limits_can_be_shown(tmp_path: Path) -> None:
    spec = load_spec(spec_file(tmp_path, size=2))
    dataset = replace(spec.experiment.dataset, limits=DatasetLimits(bytes=10, rows=1, columns=1))
    run(replace(spec, experiment=replace(spec.experiment, dataset=dataset)), tmp_path / "results")
    name = only_run(tmp_path / "results").name
    for arguments in (("show", name, "p0"), ("export", name, "--format", "openai")):
        completed = nip_run_here(*arguments, cwd=tmp_path)
        assert completed.returncode == 0, completed.stderr


@pytest.mark.full
def test_saved_dataset_is_limited_whatever_its_spec_says(tmp_path: Path) -> None:
    run(load_spec(spec_file(tmp_path, size=2)), tmp_path / "results")
    folder = only_run(tmp_path / "results")
    data = folder / "inputs" / "dataset.jsonl"
    rows = [json.loads(line) for line in data.read_text().splitlines()]
    data.write_text("".join(json.dumps({**row, **{f"c{n}": 1 for n in range(8_100)}}) + "\n" for row in rows))
    with pytest.raises(SpecError, match=r"columns or more, more than dataset\.limits\.columns \(8,000\)"):
        load_saved(folder / "spec.yaml")
    largest_limits = limits_for_saved_run(DatasetLimits(bytes=2**62, rows=2**62, columns=2**62))
    assert (largest_limits.bytes, largest_limits.rows, largest_limits.columns) == (64 << 30, 10**9, 10**6)
    saved_limits = DatasetLimits(bytes=10 << 30, rows=10**8, columns=10**5)
    assert limits_for_saved_run(saved_limits) == saved_limits
    assert limits_for_saved_run(DatasetLimits(bytes=1)).bytes == 2 << 30
