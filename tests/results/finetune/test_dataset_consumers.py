"""The files in the consumers themselves: Hugging Face datasets reads them, TRL's own checks take them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runner.results.finetune.example_file import trace_path
from runner.results.finetune.formats import FORMATS
from runner.results.folder import RunFolder
from tests.results.finetune.test_dataset_files import DEBATE
from tests.support.runs import run_spec
from tests.support.specs import merge_changes, spec_file
from tests.support.training import malt_changes, run_training, training_spec

STRICT = """\
{%- if messages[0]['role'] == 'system' -%}
  {{- '<<' + messages[0]['content'] + '>>' -}}
  {%- set turns = messages[1:] -%}
{%- else -%}
  {%- set turns = messages -%}
{%- endif -%}
{%- for message in turns -%}
  {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
    {{- raise_exception('roles must alternate user/assistant/user/assistant') -}}
  {%- endif -%}
  {{- '[' + message['role'] + '] ' + message['content'] + ' [end]' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '[assistant] ' -}}{%- endif -%}
"""
"""A chat template as strict as Gemma's and Mistral's."""

LENIENT = """\
{%- for message in messages -%}
  {{- '[' + message['role'] + '] ' + message['content'] + ' [end]' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '[assistant] ' -}}{%- endif -%}
"""
"""A chat template that takes any roles, as Qwen 2.5's and Llama 3's."""


@pytest.fixture(scope="module", autouse=True)
def _offline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HOME", str(tmp_path_factory.mktemp("hf")))
        patch.setenv("HF_HUB_OFFLINE", "1")
        for consumer in ("datasets", "transformers", "trl"):  # before any game is played for them
            pytest.importorskip(consumer)
        # Tests of the registry on the Hub may have imported it before, which is when it reads the variable.
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        yield


def tokenizer_of(template: str) -> Any:
    import transformers
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit

    fast: Any = transformers.PreTrainedTokenizerFast  # its types are there or not with the extra
    words = Tokenizer(WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    words.pre_tokenizer = WhitespaceSplit()
    return fast(tokenizer_object=words, unk_token="[UNK]", chat_template=template)


@pytest.fixture(scope="module")
def tokenizer(_offline: None) -> Any:
    return tokenizer_of(STRICT)


@pytest.fixture(scope="module")
def trl(_offline: None) -> Any:
    from trl import data_utils

    return data_utils


def finished(root: Path, protocol: str, chat_format: str | None) -> RunFolder:
    settings = {"formats": ["openai", "trl", "verl"], "validation_share": 0.3, "chat_format": chat_format}
    changes = DEBATE if protocol == "debate" else {}
    return run_spec(spec_file(root, **{**changes, "fine_tune": settings}), root / "results").folder


@pytest.fixture(scope="module", params=["nip", "debate"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A finished run with files in all formats that games give, written for templates that want roles to alternate."""
    return finished(tmp_path_factory.mktemp(request.param), request.param, "alternating")


@pytest.fixture(scope="module")
def as_played(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A finished debate with files of its chats as they were: senders in `name`, roles in any order."""
    return finished(tmp_path_factory.mktemp("as_played"), "debate", None)


def loaded(kind: str, path: Path, cache: Path) -> Any:
    return pytest.importorskip("datasets").load_dataset(
        kind, data_files=str(path), split="train", cache_dir=str(cache / "datasets")
    )


def learnt(root: Path, consumer: str, method: str, **changes: Any) -> list[Path]:
    """What a training run wrote for a consumer: a file for each model group and iteration."""
    trainer = {"backend": "dummy", "format": consumer}
    training = {"trainers": {"p": trainer, "v": trainer}, "test": {"scheme": "none"}}
    changes = merge_changes(
        changes, {"training": training, "fine_tune": {"chat_format": "alternating", "min_examples": 1}}
    )
    run = run_training(training_spec(root, **changes), root / "results").folder
    files = sorted((run.path / "iterations").rglob(f"[pv]{FORMATS[consumer, method].suffix}"))
    assert len(files) == 4
    return files


@pytest.fixture(scope="module")
def preferred(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """The files of MALT, by consumer."""
    root = tmp_path_factory.mktemp("malt")
    return {consumer: learnt(root / consumer, consumer, "dpo", **malt_changes()) for consumer in ("openai", "trl")}


@pytest.fixture(scope="module")
def selected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """The files of expert iteration, by consumer: rollouts that were drawn again, and guesses that were replaced."""
    root = tmp_path_factory.mktemp("expert_iteration")
    selection = {"method": "weighted_sampling", "sample_size_factor": 2.0, "replacement": True}
    training = {"selection": selection, "guess_replacement": {"proportion": 0.5}}
    return {consumer: learnt(root / consumer, consumer, "sft", training=training) for consumer in ("openai", "trl")}


# Hugging Face datasets


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "name", ["m.sft.jsonl", "m.sft.trl.jsonl", "m.sft.validation.jsonl", "m.sft.trl.validation.jsonl"]
)
def test_datasets_loads_supervised_files(tmp_path: Path, folder: RunFolder, name: str) -> None:
    data = loaded("json", folder.fine_tune / name, tmp_path)
    assert data.column_names == (["prompt", "completion"] if ".trl." in name else ["messages"])
    assert len(data) == len((folder.fine_tune / name).read_bytes().splitlines()) > 0
    assert all(example[data.column_names[0]][0]["content"] for example in data)


@pytest.mark.full
@pytest.mark.parametrize("consumer", ["openai", "trl"])
def test_datasets_loads_the_preferences_of_malt(
    tmp_path: Path, preferred: dict[str, list[Path]], consumer: str
) -> None:
    by_trl, by_openai = ["prompt", "chosen", "rejected"], ["input", "preferred_output", "non_preferred_output"]
    for path in preferred[consumer]:
        data = loaded("json", path, tmp_path)
        assert data.column_names == (by_trl if consumer == "trl" else by_openai)
        assert len(data) == len(path.read_bytes().splitlines()) > 0


@pytest.mark.full
@pytest.mark.parametrize("consumer", ["openai", "trl"])
def test_datasets_loads_what_expert_iteration_selected_with_every_repeat(
    tmp_path: Path, selected: dict[str, list[Path]], consumer: str
) -> None:
    for path in selected[consumer]:
        data, lines = loaded("json", path, tmp_path), path.read_bytes().splitlines()
        assert data.column_names == (["prompt", "completion"] if consumer == "trl" else ["messages"])
        assert len(data) == len(lines) > len(set(lines)) > 0
        traces = [json.loads(line) for line in trace_path(path).read_bytes().splitlines()]
        assert any(trace["other"].get("guess_replaced") for trace in traces) == path.name.startswith("v")


def test_datasets_loads_the_parquet_for_verl(tmp_path: Path, folder: RunFolder) -> None:
    for name in ("m.rl.parquet", "m.rl.validation.parquet"):
        data = loaded("parquet", folder.fine_tune / name, tmp_path)
        assert data.column_names == ["data_source", "prompt", "ability", "reward_model", "reward", "extra_info"]
        for row in data:
            assert {"role", "content"} == set(row["prompt"][0])
            assert row["reward_model"]["ground_truth"] in (0, 1)


# TRL


def test_trl_takes_supervised_files_where_roles_must_alternate(
    tmp_path: Path, folder: RunFolder, tokenizer: Any, trl: Any
) -> None:
    for name in ("m.sft.trl.jsonl", "m.sft.trl.validation.jsonl"):
        data = loaded("json", folder.fine_tune / name, tmp_path)
        for example in data:
            assert learns_the_completion_alone(trl, example, tokenizer)


def learns_the_completion_alone(trl: Any, example: dict[str, Any], tokenizer: Any) -> bool:
    """Whether TRL puts every message of the prompt before what it learns, and the answer alone into that."""
    assert trl.is_conversational(example)
    text = trl.maybe_apply_chat_template(example, tokenizer)
    (answer,) = example["completion"]
    before = all(message["content"] in text["prompt"] for message in example["prompt"])
    return before and text["prompt"].endswith("[assistant] ") and text["completion"] == f"{answer['content']} [end]"


@pytest.mark.full
def test_that_template_refuses_the_chat_of_a_debate_as_it_was_played(
    tmp_path: Path, as_played: RunFolder, tokenizer: Any, trl: Any
) -> None:
    from jinja2 import TemplateError

    data = loaded("json", as_played.fine_tune / "m.sft.jsonl", tmp_path)
    with pytest.raises(TemplateError, match="roles must alternate"):
        for example in data:
            trl.apply_chat_template(example, tokenizer)


def test_trl_tokenizes_a_debate_as_it_was_played_where_a_template_takes_its_roles(
    tmp_path: Path, as_played: RunFolder, trl: Any
) -> None:
    """In the way of its trainers, which take a prompt that ends with instructions; `apply_chat_template` does not."""
    lenient = tokenizer_of(LENIENT)
    data = loaded("json", as_played.fine_tune / "m.sft.trl.jsonl", tmp_path)
    assert {example["prompt"][-1]["role"] for example in data} == {"system", "user"}
    assert all("name" not in m or m["name"] for example in data for m in example["prompt"] if m["role"] == "user")
    for example in data:
        prompt = trl._tokenize(lenient, example["prompt"], add_generation_prompt=True)["input_ids"]
        whole = trl._tokenize(lenient, example["prompt"] + example["completion"])["input_ids"]
        assert trl.common_prefix_length(prompt, whole) == len(prompt) < len(whole)


def test_trl_takes_what_expert_iteration_selected(
    tmp_path: Path, selected: dict[str, list[Path]], tokenizer: Any, trl: Any
) -> None:
    for path in selected["trl"]:
        for example in loaded("json", path, tmp_path):
            assert learns_the_completion_alone(trl, example, tokenizer)


def test_trl_takes_the_preferences_of_malt(
    tmp_path: Path, preferred: dict[str, list[Path]], tokenizer: Any, trl: Any
) -> None:
    for path in preferred["trl"]:
        data = loaded("json", path, tmp_path)
        for example in data:
            assert trl.is_conversational(example)
            assert trl.maybe_extract_prompt(example) == example
            whole = {side: example["prompt"] + example[side] for side in ("chosen", "rejected")}
            assert trl.extract_prompt(whole) == example
            text = trl.apply_chat_template(example, tokenizer)
            assert text["prompt"].endswith("[assistant] ")
            for side in ("chosen", "rejected"):
                (answer,) = example[side]
                assert text[side] == f"{answer['content']} [end]"
        unpaired = trl.unpair_preference_dataset(data)
        assert len(unpaired) == 2 * len(data)
        assert unpaired["label"].count(True) == len(data)


def test_the_prompts_of_rl_fit_a_template_that_demands_alternation(
    tmp_path: Path, folder: RunFolder, tokenizer: Any, trl: Any
) -> None:
    for row in loaded("parquet", folder.fine_tune / "m.rl.parquet", tmp_path):
        assert trl.is_conversational(row)
        text = trl.apply_chat_template({"prompt": row["prompt"]}, tokenizer)["prompt"]
        assert text.endswith("[assistant] ")
