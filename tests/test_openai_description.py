"""Requests to OpenAI are valid according to OpenAI's OpenAPI description.

`tests/fixtures/openai/schemas.json` has its schemas; `make.py` in the same folder has their source.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.support.openai_calls import complete_chat, model_settings
from tests.support.paths import ROOT
from tests.support.runs import run_spec
from tests.support.servers.batch_client import run_batch_provider
from tests.support.servers.chat_client import run_chat_server
from tests.support.servers.client import LoopbackServer
from tests.support.servers.fine_tune_client import run_fine_tuning_provider
from tests.support.specs import spec_file
from tests.support.training import malt_changes, provider_changes, run_training, training_spec

DESCRIPTION = json.loads((ROOT / "tests" / "fixtures" / "openai" / "schemas.json").read_text("utf-8"))
CHAT = "CreateChatCompletionRequest"
PREFERENCES = {"preferred_output": "preferred_completion", "non_preferred_output": "non_preferred_completion"}
"""Names in the API and its guide, and the different names in the description."""


@cache
def make_validator(part: str, name: str) -> Draft202012Validator:
    """Return a validator that also refuses unknown keys, because OpenAI ignores misspelled ones."""
    schemas = DESCRIPTION[part]["$defs"]
    composed_names = {
        branch["$ref"].rpartition("/")[2]
        for branches in iterate_all_of(schemas)
        for branch in branches
        if "$ref" in branch
    }
    strict = {
        key: {**schema, "unevaluatedProperties": False} if _is_object(schema) and key not in composed_names else schema
        for key, schema in schemas.items()
    }
    return Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": strict})


def iterate_all_of(node: Any) -> Iterator[list[dict[str, Any]]]:
    if isinstance(node, dict):
        if isinstance(node.get("allOf"), list):
            yield node["allOf"]
        node = list(node.values())
    if isinstance(node, list):
        for item in node:
            yield from iterate_all_of(item)


def _is_object(schema: dict[str, Any]) -> bool:
    return "properties" in schema or "allOf" in schema


def find_problems(part: str, name: str, value: Any) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in make_validator(part, name).iter_errors(value)]


def find_line_problems(line: dict[str, Any]) -> list[str]:
    """Return the problems of a line of a fine-tuning dataset, for either method."""
    if "messages" in line:
        return find_problems("lines", "FineTuneChatRequestInput", line)
    renamed = {PREFERENCES.get(name, name): value for name, value in line.items()}
    missing = [name for name in ("input", *PREFERENCES) if not line.get(name)]
    return missing or find_problems("lines", "FineTunePreferenceRequestInput", renamed)


def find_batch_problems(line: dict[str, Any]) -> list[str]:
    """Return the problems of a line of a batch, whose `body` is a request for the endpoint."""
    rest = {name: value for name, value in line.items() if name != "body"}
    return find_problems("lines", "BatchRequestInput", rest) + find_problems("requests", CHAT, line.get("body"))


def list_uploaded_lines(provider: LoopbackServer, purpose: str) -> list[dict[str, Any]]:
    """Return the lines of all files that were uploaded for a purpose."""
    bodies = [
        request["body"]
        for request in provider.recorded_requests()
        if (request["method"], request["path"]) == ("POST", "/v1/files")
    ]
    matching_bodies = [body for body in bodies if re.search(rf'name="purpose"\r\n\r\n{purpose}\r\n', body)]
    assert len(matching_bodies) == len(bodies)
    return [json.loads(line) for body in matching_bodies for line in body.splitlines() if line.startswith("{")]


def list_created_objects(provider: LoopbackServer, path: str) -> list[dict[str, Any]]:
    return [
        json.loads(request["body"])
        for request in provider.recorded_requests()
        if (request["method"], request["path"]) == ("POST", path)
    ]


def read_lines(folder: Path, pattern: str) -> list[dict[str, Any]]:
    return [json.loads(line) for path in folder.rglob(pattern) for line in path.read_text("utf-8").splitlines()]


SETTINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.0, "top_p": 1.0, "max_completion_tokens": 1, "n": 128, "seed": 0, "reasoning_effort": "minimal"},
    {"temperature": 2.0, "top_p": 0.0, "max_tokens": 4096, "n": 1, "seed": 2**53, "reasoning_effort": "high"},
    {"stop": ("</answer>",)},
    {"stop": ("a", "b", "c", "\n")},
    {"system_role": "developer", "reasoning_effort": "low"},
    {"send_name": False},
    {"system_role": "developer", "send_name": False},
]


def test_every_request_is_valid_for_all_model_settings() -> None:
    with run_chat_server(record=1000) as server:
        for settings in SETTINGS:
            complete_chat(model_settings(server, **settings))
        bodies = list_created_objects(server, "/v1/chat/completions")
    assert len(bodies) == len(SETTINGS)
    assert {key for settings in SETTINGS for key in settings} - {key for body in bodies for key in body} == {
        "system_role", "send_name",
    }  # fmt: skip
    for body in bodies:
        assert find_problems("requests", CHAT, body) == [], body


@pytest.mark.parametrize("protocol", ["debate", pytest.param("mnip", marks=pytest.mark.full)])
def test_batches_and_training_examples_are_valid(tmp_path: Path, protocol: str) -> None:
    model = {"chat_format": "openai", "batch": True, "batch_wait": 0.02, "batch_poll": 0.02, "temperature": 0.5}
    with run_batch_provider(record=10_000) as provider:
        spec = spec_file(
            tmp_path, provider.base_url, size=4, models={"m": model}, prompts=f"prompts/code_validation/{protocol}",
            protocol={"use": protocol}, agents={"prover": None, "prover0": {"model": "m"}, "prover1": {"model": "m"}},
        )  # fmt: skip
        run = run_spec(spec, tmp_path / "results").folder.path
        lines, batches = list_uploaded_lines(provider, "batch"), list_created_objects(provider, "/v1/batches")
    assert len(lines) >= 12
    assert any("name" in message for line in lines for message in line["body"]["messages"])
    for line in lines:
        assert find_batch_problems(line) == [], line
    for batch in batches:
        assert find_problems("requests", "CreateBatchRequest", batch) == [], batch
    examples = read_lines(run / "fine_tune", "*.sft.jsonl")
    assert len(examples) >= 12
    for example in examples:
        assert find_line_problems(example) == [], example


@pytest.mark.full
@pytest.mark.parametrize("method", [pytest.param("expert_iteration", marks=pytest.mark.full), "malt"])
def test_fine_tuning_jobs_and_uploaded_lines_are_valid(tmp_path: Path, method: str) -> None:
    group_settings = {"p": {"share_prompts": True}, "v": {"share_prompts": True}}
    common_changes = {"training": {"iterations": 1, "test": {"scheme": "none"}}, "models": group_settings}
    with run_fine_tuning_provider() as provider:
        changes = malt_changes(**common_changes) if method == "malt" else common_changes
        spec = provider_changes(provider.base_url, **changes)
        for trainer in spec["training"]["trainers"].values():
            trainer.update(n_epochs=3, batch_size=8, learning_rate_multiplier=0.5, suffix="nip")
        if method == "malt":
            spec["training"]["trainers"]["p"]["beta"] = 0.1
        run_training(training_spec(tmp_path, **spec), tmp_path / "results")
        lines, jobs = list_uploaded_lines(provider, "fine-tune"), list_created_objects(provider, "/v1/fine_tuning/jobs")
    assert {job["method"]["type"] for job in jobs} == {"dpo" if method == "malt" else "supervised"}
    for job in jobs:
        assert find_problems("requests", "CreateFineTuningJobRequest", job) == [], job
    assert len(lines) >= 20
    for line in lines:
        assert find_line_problems(line) == [], line


ANSWER: dict[str, Any] = {"role": "assistant", "content": "Yes."}


@pytest.mark.parametrize(
    "wrong",
    [
        {"messages": [ANSWER]},
        {"model": "m", "messages": []},
        {"model": "m", "messages": [{"role": "system"}]},
        {"model": "m", "messages": [{**ANSWER, "weight": 0}]},
        {"model": "m", "messages": [ANSWER], "temperature": 2.1},
        {"model": "m", "messages": [ANSWER], "max_output_tokens": 3},
        {"model": "m", "messages": [ANSWER], "reasoning_effort": "most"},
        {"model": "m", "messages": [ANSWER], "stop": ["a"] * 5},
        {"model": "m", "messages": [ANSWER], "n": 129},
    ],
)
def test_invalid_request_is_detected(wrong: dict[str, Any]) -> None:
    assert find_problems("requests", CHAT, wrong)
    assert find_batch_problems({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": wrong})


@pytest.mark.parametrize(
    "wrong",
    [
        {"messages": []},
        {"messages": [{**ANSWER, "weight": 2}]},
        {"messages": [{"role": "user", "content": "Why?", "weight": 0}]},
        {"messages": [{**ANSWER, "sender": "Expert_1"}]},
        {"input": {"messages": [ANSWER]}, "preferred_output": [ANSWER]},
        {"input": {"messages": [ANSWER]}, "preferred_output": [ANSWER], "non_preferred_output": [ANSWER, ANSWER]},
    ],
)
def test_invalid_training_example_is_detected(wrong: dict[str, Any]) -> None:
    assert find_line_problems(wrong)
