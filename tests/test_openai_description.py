"""What OpenAI is sent is what OpenAI's own OpenAPI description says that it takes.

`tests/fixtures/openai/schemas.json` holds the schemas of it; `make.py` beside it says from where.
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
"""What the API and its guide call them, and what the description does."""


@cache
def validator(part: str, name: str) -> Draft202012Validator:
    """Refuses keys that the description does not know, too: a misspelt one is one that nobody reads."""
    schemas = DESCRIPTION[part]["$defs"]
    mixed_in = {arm["$ref"].rpartition("/")[2] for arms in _all_of(schemas) for arm in arms if "$ref" in arm}
    strict = {
        key: {**schema, "unevaluatedProperties": False} if _is_object(schema) and key not in mixed_in else schema
        for key, schema in schemas.items()
    }
    return Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": strict})


def _all_of(node: Any) -> Iterator[list[dict[str, Any]]]:
    if isinstance(node, dict):
        if isinstance(node.get("allOf"), list):
            yield node["allOf"]
        node = list(node.values())
    if isinstance(node, list):
        for item in node:
            yield from _all_of(item)


def _is_object(schema: dict[str, Any]) -> bool:
    return "properties" in schema or "allOf" in schema


def problems(part: str, name: str, value: Any) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in validator(part, name).iter_errors(value)]


def line_problems(line: dict[str, Any]) -> list[str]:
    """Of a line of a dataset to fine-tune on, of either method."""
    if "messages" in line:
        return problems("lines", "FineTuneChatRequestInput", line)
    renamed = {PREFERENCES.get(name, name): value for name, value in line.items()}
    missing = [name for name in ("input", *PREFERENCES) if not line.get(name)]
    return missing or problems("lines", "FineTunePreferenceRequestInput", renamed)


def batch_problems(line: dict[str, Any]) -> list[str]:
    """Of a line of a batch; its `body` is what the endpoint takes."""
    rest = {name: value for name, value in line.items() if name != "body"}
    return problems("lines", "BatchRequestInput", rest) + problems("requests", CHAT, line.get("body"))


def uploads(provider: LoopbackServer, purpose: str) -> list[dict[str, Any]]:
    """The lines of all files that were uploaded for a purpose."""
    bodies = [
        found["body"]
        for found in provider.recorded_requests()
        if (found["method"], found["path"]) == ("POST", "/v1/files")
    ]
    wanted = [body for body in bodies if re.search(rf'name="purpose"\r\n\r\n{purpose}\r\n', body)]
    assert len(wanted) == len(bodies)
    return [json.loads(line) for body in wanted for line in body.splitlines() if line.startswith("{")]


def created(provider: LoopbackServer, path: str) -> list[dict[str, Any]]:
    return [
        json.loads(found["body"])
        for found in provider.recorded_requests()
        if (found["method"], found["path"]) == ("POST", path)
    ]


def file_lines(folder: Path, pattern: str) -> list[dict[str, Any]]:
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


def test_every_request_is_as_the_description_says_whatever_a_spec_sets() -> None:
    with run_chat_server(record=1000) as server:
        for chosen in SETTINGS:
            complete_chat(model_settings(server, **chosen))
        bodies = created(server, "/v1/chat/completions")
    assert len(bodies) == len(SETTINGS)
    assert {key for chosen in SETTINGS for key in chosen} - {key for body in bodies for key in body} == {
        "system_role", "send_name",
    }  # fmt: skip
    for body in bodies:
        assert problems("requests", CHAT, body) == [], body


@pytest.mark.parametrize("protocol", ["debate", pytest.param("mnip", marks=pytest.mark.full)])
def test_batches_their_lines_and_the_examples_of_a_run_are_as_the_description_says(
    tmp_path: Path, protocol: str
) -> None:
    model = {"chat_format": "openai", "batch": True, "batch_wait": 0.02, "batch_poll": 0.02, "temperature": 0.5}
    with run_batch_provider(record=10_000) as provider:
        spec = spec_file(
            tmp_path, provider.base_url, size=4, models={"m": model}, prompts=f"prompts/code_validation/{protocol}",
            protocol={"use": protocol}, agents={"prover": None, "prover0": {"model": "m"}, "prover1": {"model": "m"}},
        )  # fmt: skip
        run = run_spec(spec, tmp_path / "results").folder.path
        lines, batches = uploads(provider, "batch"), created(provider, "/v1/batches")
    assert len(lines) >= 12
    assert any("name" in message for line in lines for message in line["body"]["messages"])
    for line in lines:
        assert batch_problems(line) == [], line
    for batch in batches:
        assert problems("requests", "CreateBatchRequest", batch) == [], batch
    examples = file_lines(run / "fine_tune", "*.sft.jsonl")
    assert len(examples) >= 12
    for example in examples:
        assert line_problems(example) == [], example


@pytest.mark.full
@pytest.mark.parametrize("method", [pytest.param("expert_iteration", marks=pytest.mark.full), "malt"])
def test_jobs_and_every_line_that_is_uploaded_for_them_are_as_the_description_says(tmp_path: Path, method: str) -> None:
    shared = {"p": {"share_prompts": True}, "v": {"share_prompts": True}}
    more = {"training": {"iterations": 1, "test": {"scheme": "none"}}, "models": shared}
    with run_fine_tuning_provider() as provider:
        changes = malt_changes(**more) if method == "malt" else more
        spec = provider_changes(provider.base_url, **changes)
        for trainer in spec["training"]["trainers"].values():
            trainer.update(n_epochs=3, batch_size=8, learning_rate_multiplier=0.5, suffix="nip")
        if method == "malt":
            spec["training"]["trainers"]["p"]["beta"] = 0.1
        run_training(training_spec(tmp_path, **spec), tmp_path / "results")
        lines, jobs = uploads(provider, "fine-tune"), created(provider, "/v1/fine_tuning/jobs")
    assert {job["method"]["type"] for job in jobs} == {"dpo" if method == "malt" else "supervised"}
    for job in jobs:
        assert problems("requests", "CreateFineTuningJobRequest", job) == [], job
    assert len(lines) >= 20
    for line in lines:
        assert line_problems(line) == [], line


SAID: dict[str, Any] = {"role": "assistant", "content": "Yes."}


@pytest.mark.parametrize(
    "wrong",
    [
        {"messages": [SAID]},
        {"model": "m", "messages": []},
        {"model": "m", "messages": [{"role": "system"}]},
        {"model": "m", "messages": [{**SAID, "weight": 0}]},
        {"model": "m", "messages": [SAID], "temperature": 2.1},
        {"model": "m", "messages": [SAID], "max_output_tokens": 3},
        {"model": "m", "messages": [SAID], "reasoning_effort": "most"},
        {"model": "m", "messages": [SAID], "stop": ["a"] * 5},
        {"model": "m", "messages": [SAID], "n": 129},
    ],
)
def test_what_the_description_does_not_take_is_noticed(wrong: dict[str, Any]) -> None:
    assert problems("requests", CHAT, wrong)
    assert batch_problems({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": wrong})


@pytest.mark.parametrize(
    "wrong",
    [
        {"messages": []},
        {"messages": [{**SAID, "weight": 2}]},
        {"messages": [{"role": "user", "content": "Why?", "weight": 0}]},
        {"messages": [{**SAID, "sender": "Expert_1"}]},
        {"input": {"messages": [SAID]}, "preferred_output": [SAID]},
        {"input": {"messages": [SAID]}, "preferred_output": [SAID], "non_preferred_output": [SAID, SAID]},
    ],
)
def test_examples_that_the_description_does_not_take_are_noticed(wrong: dict[str, Any]) -> None:
    assert line_problems(wrong)
