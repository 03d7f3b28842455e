"""The files in their consumers: Hugging Face datasets loads them, and TRL's own checks accept them."""

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
"""A chat template that accepts roles in any order, like those of Qwen 2.5 and Llama 3."""


@pytest.fixture(scope="module", autouse=True)
def _offline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HOME", str(tmp_path_factory.mktemp("hf")))
        patch.setenv("HF_HUB_OFFLINE", "1")
        for consumer in ("datasets", "transformers", "trl"):  # skip before any game is played
            pytest.importorskip(consumer)
        # The module reads the variable at import, and tests of the Hub registry may have imported it earlier.
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        yield


def make_tokenizer(template: str) -> Any:
    import transformers
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit

    fast: Any = transformers.PreTrainedTokenizerFast  # typed only if the extra is installed
    model = Tokenizer(WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    model.pre_tokenizer = WhitespaceSplit()
    return fast(tokenizer_object=model, unk_token="[UNK]", chat_template=template)


@pytest.fixture(scope="module")
def tokenizer(_offline: None) -> Any:
    return make_tokenizer(STRICT)


@pytest.fixture(scope="module")
def trl(_offline: None) -> Any:
    from trl import data_utils

    return data_utils


def play_with_fine_tune_files(root: Path, protocol: str, chat_format: str | None) -> RunFolder:
    settings = {"formats": ["openai", "trl", "verl"], "validation_share": 0.3, "chat_format": chat_format}
    changes = DEBATE if protocol == "debate" else {}
    return run_spec(spec_file(root, **{**changes, "fine_tune": settings}), root / "results").folder


@pytest.fixture(scope="module", params=["nip", "debate"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Play a run with files in all formats of games, written for templates that require alternating roles."""
    return play_with_fine_tune_files(tmp_path_factory.mktemp(request.param), request.param, "alternating")


@pytest.fixture(scope="module")
def as_played(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Play a debate whose files contain the chats as played: senders in `name`, roles in any order."""
    return play_with_fine_tune_files(tmp_path_factory.mktemp("as_played"), "debate", None)


def load_file(kind: str, path: Path, cache: Path) -> Any:
    return pytest.importorskip("datasets").load_dataset(
        kind, data_files=str(path), split="train", cache_dir=str(cache / "datasets")
    )


def train_and_list_files(root: Path, consumer: str, method: str, **changes: Any) -> list[Path]:
    """Play a training run, and return its files for a consumer, one per model group and iteration."""
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
def preference_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """Return the files of MALT by consumer."""
    root = tmp_path_factory.mktemp("malt")
    return {
        consumer: train_and_list_files(root / consumer, consumer, "dpo", **malt_changes())
        for consumer in ("openai", "trl")
    }


@pytest.fixture(scope="module")
def selection_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """Return the files of expert iteration by consumer, with resampled rollouts and replaced guesses."""
    root = tmp_path_factory.mktemp("expert_iteration")
    selection = {"method": "weighted_sampling", "sample_size_factor": 2.0, "replacement": True}
    training = {"selection": selection, "guess_replacement": {"proportion": 0.5}}
    return {
        consumer: train_and_list_files(root / consumer, consumer, "sft", training=training)
        for consumer in ("openai", "trl")
    }


# Hugging Face datasets


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "name", ["m.sft.jsonl", "m.sft.trl.jsonl", "m.sft.validation.jsonl", "m.sft.trl.validation.jsonl"]
)
def test_datasets_loads_supervised_files(tmp_path: Path, folder: RunFolder, name: str) -> None:
    data = load_file("json", folder.fine_tune / name, tmp_path)
    assert data.column_names == (["prompt", "completion"] if ".trl." in name else ["messages"])
    assert len(data) == len((folder.fine_tune / name).read_bytes().splitlines()) > 0
    assert all(example[data.column_names[0]][0]["content"] for example in data)


@pytest.mark.full
@pytest.mark.parametrize("consumer", ["openai", "trl"])
def test_datasets_loads_the_preferences_of_malt(
    tmp_path: Path, preference_files: dict[str, list[Path]], consumer: str
) -> None:
    trl_columns, openai_columns = (
        ["prompt", "chosen", "rejected"],
        ["input", "preferred_output", "non_preferred_output"],
    )
    for path in preference_files[consumer]:
        data = load_file("json", path, tmp_path)
        assert data.column_names == (trl_columns if consumer == "trl" else openai_columns)
        assert len(data) == len(path.read_bytes().splitlines()) > 0


@pytest.mark.full
@pytest.mark.parametrize("consumer", ["openai", "trl"])
def test_datasets_loads_the_selection_of_expert_iteration_with_every_repeat(
    tmp_path: Path, selection_files: dict[str, list[Path]], consumer: str
) -> None:
    for path in selection_files[consumer]:
        data, lines = load_file("json", path, tmp_path), path.read_bytes().splitlines()
        assert data.column_names == (["prompt", "completion"] if consumer == "trl" else ["messages"])
        assert len(data) == len(lines) > len(set(lines)) > 0
        traces = [json.loads(line) for line in trace_path(path).read_bytes().splitlines()]
        assert any(trace["other"].get("guess_replaced") for trace in traces) == path.name.startswith("v")


def test_datasets_loads_the_parquet_for_verl(tmp_path: Path, folder: RunFolder) -> None:
    for name in ("m.rl.parquet", "m.rl.validation.parquet"):
        data = load_file("parquet", folder.fine_tune / name, tmp_path)
        assert data.column_names == ["data_source", "prompt", "ability", "reward_model", "reward", "extra_info"]
        for row in data:
            assert {"role", "content"} == set(row["prompt"][0])
            assert row["reward_model"]["ground_truth"] in (0, 1)


# TRL


def test_trl_accepts_supervised_files_with_alternating_roles(
    tmp_path: Path, folder: RunFolder, tokenizer: Any, trl: Any
) -> None:
    for name in ("m.sft.trl.jsonl", "m.sft.trl.validation.jsonl"):
        data = load_file("json", folder.fine_tune / name, tmp_path)
        for example in data:
            assert trl_learns_only_the_completion(trl, example, tokenizer)


def trl_learns_only_the_completion(trl: Any, example: dict[str, Any], tokenizer: Any) -> bool:
    """Return True if TRL puts all messages of the prompt before the completion, and only the answer into it."""
    assert trl.is_conversational(example)
    text = trl.maybe_apply_chat_template(example, tokenizer)
    (answer,) = example["completion"]
    before = all(message["content"] in text["prompt"] for message in example["prompt"])
    return before and text["prompt"].endswith("[assistant] ") and text["completion"] == f"{answer['content']} [end]"


@pytest.mark.full
def test_strict_template_refuses_the_chat_of_a_debate_as_played(
    tmp_path: Path, as_played: RunFolder, tokenizer: Any, trl: Any
) -> None:
    from jinja2 import TemplateError

    data = load_file("json", as_played.fine_tune / "m.sft.jsonl", tmp_path)
    with pytest.raises(TemplateError, match="roles must alternate"):
        for example in data:
            trl.apply_chat_template(example, tokenizer)


def test_trl_tokenizes_a_debate_as_played_with_a_lenient_template(
    tmp_path: Path, as_played: RunFolder, trl: Any
) -> None:
    """TRL's trainers accept a prompt that ends with instructions; `apply_chat_template` does not."""
    lenient = make_tokenizer(LENIENT)
    data = load_file("json", as_played.fine_tune / "m.sft.trl.jsonl", tmp_path)
    assert {example["prompt"][-1]["role"] for example in data} == {"system", "user"}
    assert all("name" not in m or m["name"] for example in data for m in example["prompt"] if m["role"] == "user")
    for example in data:
        prompt = trl._tokenize(lenient, example["prompt"], add_generation_prompt=True)["input_ids"]
        full = trl._tokenize(lenient, example["prompt"] + example["completion"])["input_ids"]
        assert trl.common_prefix_length(prompt, full) == len(prompt) < len(full)


def test_trl_accepts_the_selection_of_expert_iteration(
    tmp_path: Path, selection_files: dict[str, list[Path]], tokenizer: Any, trl: Any
) -> None:
    for path in selection_files["trl"]:
        for example in load_file("json", path, tmp_path):
            assert trl_learns_only_the_completion(trl, example, tokenizer)


def test_trl_accepts_the_preferences_of_malt(
    tmp_path: Path, preference_files: dict[str, list[Path]], tokenizer: Any, trl: Any
) -> None:
    for path in preference_files["trl"]:
        data = load_file("json", path, tmp_path)
        for example in data:
            assert trl.is_conversational(example)
            assert trl.maybe_extract_prompt(example) == example
            full_chats = {side: example["prompt"] + example[side] for side in ("chosen", "rejected")}
            assert trl.extract_prompt(full_chats) == example
            text = trl.apply_chat_template(example, tokenizer)
            assert text["prompt"].endswith("[assistant] ")
            for side in ("chosen", "rejected"):
                (answer,) = example[side]
                assert text[side] == f"{answer['content']} [end]"
        unpaired = trl.unpair_preference_dataset(data)
        assert len(unpaired) == 2 * len(data)
        assert unpaired["label"].count(True) == len(data)


def test_rl_prompts_fit_a_template_with_alternating_roles(
    tmp_path: Path, folder: RunFolder, tokenizer: Any, trl: Any
) -> None:
    for row in load_file("parquet", folder.fine_tune / "m.rl.parquet", tmp_path):
        assert trl.is_conversational(row)
        text = trl.apply_chat_template({"prompt": row["prompt"]}, tokenizer)["prompt"]
        assert text.endswith("[assistant] ")
