"""The files in the consumers themselves: Hugging Face datasets reads them, TRL's own checks take them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runner.datasets.example_file import ExampleFile
from runner.datasets.examples import Preference, Source
from runner.datasets.formats import FORMATS
from runner.rundir import RunFolder
from tests.server.play import played, spec_file
from tests.test_dataset_files import DEBATE

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


@pytest.fixture(scope="module", autouse=True)
def _offline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HOME", str(tmp_path_factory.mktemp("hf")))
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield


@pytest.fixture(scope="module")
def tokenizer(_offline: None) -> Any:
    pytest.importorskip("transformers")
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", chat_template=STRICT)


@pytest.fixture(scope="module")
def trl(_offline: None) -> Any:
    pytest.importorskip("trl")
    pytest.importorskip("datasets")
    from trl import data_utils

    return data_utils


@pytest.fixture(scope="module", params=["nip", "debate"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A finished run with files in all formats that games give."""
    root = tmp_path_factory.mktemp(request.param)
    settings = {"fine_tune": {"formats": ["openai", "trl", "verl"], "validation_share": 0.3}}
    changes = {**DEBATE, **settings} if request.param == "debate" else settings
    return played(spec_file(root, **changes), root / "results").folder


def loaded(kind: str, path: Path, cache: Path) -> Any:
    return pytest.importorskip("datasets").load_dataset(
        kind, data_files=str(path), split="train", cache_dir=str(cache / "datasets")
    )


def preference_file(folder: RunFolder, consumer: str, target: Path) -> Path:
    """Preferences between made-up answers to the prompts of a run: there are no trees yet."""
    import duckdb

    format_ = FORMATS[consumer, "dpo"]
    file = ExampleFile(target / f"m{format_.suffix}", format_)
    found = duckdb.execute(f"SELECT prompt FROM read_parquet('{folder.fine_tune / 'm.rl.parquet'}')").fetchall()
    for index, (prompt,) in enumerate(found):
        example = Preference(prompt, f"A good answer {index}.", f"A bad answer {index}.")
        assert file.add(example, Source(folder.run_id, "r", "prover", 0, 1.0)) is None
    assert file.close()["examples"] == len(found) > 0
    return file.target


# Hugging Face datasets


@pytest.mark.parametrize(
    "name", ["m.sft.jsonl", "m.sft.trl.jsonl", "m.sft.validation.jsonl", "m.sft.trl.validation.jsonl"]
)
def test_datasets_loads_supervised_files(tmp_path: Path, folder: RunFolder, name: str) -> None:
    data = loaded("json", folder.fine_tune / name, tmp_path)
    assert data.column_names == ["messages"]
    assert len(data) == len((folder.fine_tune / name).read_bytes().splitlines()) > 0
    assert all(example["messages"][0]["content"] for example in data)


@pytest.mark.parametrize("consumer", ["openai", "trl"])
def test_datasets_loads_preference_files(tmp_path: Path, folder: RunFolder, consumer: str) -> None:
    data = loaded("json", preference_file(folder, consumer, tmp_path), tmp_path)
    names = ["prompt", "chosen", "rejected"]
    assert data.column_names == (names if consumer == "trl" else ["input", "preferred_output", "non_preferred_output"])
    assert len(data) > 0


def test_datasets_loads_verl_s_parquet(tmp_path: Path, folder: RunFolder) -> None:
    for name in ("m.rl.parquet", "m.rl.validation.parquet"):
        data = loaded("parquet", folder.fine_tune / name, tmp_path)
        assert data.column_names == ["data_source", "prompt", "ability", "reward_model", "reward", "extra_info"]
        for row in data:
            assert {"role", "content"} == set(row["prompt"][0])
            assert row["reward_model"]["ground_truth"] in (0, 1)


# TRL


def test_trl_takes_supervised_files_with_a_template_that_demands_alternation(
    tmp_path: Path, folder: RunFolder, tokenizer: Any, trl: Any
) -> None:
    for name in ("m.sft.trl.jsonl", "m.sft.trl.validation.jsonl"):
        data = loaded("json", folder.fine_tune / name, tmp_path)
        for example in data:
            assert trl.is_conversational(example)
            text = trl.maybe_apply_chat_template(example, tokenizer)["text"]
            assert all(message["content"] in text for message in example["messages"])


def test_that_template_refuses_the_chat_of_a_debate_as_it_was_played(
    tmp_path: Path, folder: RunFolder, tokenizer: Any, trl: Any
) -> None:
    from jinja2 import TemplateError

    data = loaded("json", folder.fine_tune / "m.sft.jsonl", tmp_path)
    with pytest.raises(TemplateError, match="roles must alternate"):
        for example in data:
            trl.apply_chat_template(example, tokenizer)


def test_trl_takes_preference_files(tmp_path: Path, folder: RunFolder, tokenizer: Any, trl: Any) -> None:
    data = loaded("json", preference_file(folder, "trl", tmp_path), tmp_path)
    for index, example in enumerate(data):
        assert trl.is_conversational(example)
        assert trl.maybe_extract_prompt(example) == example
        whole = {side: example["prompt"] + example[side] for side in ("chosen", "rejected")}
        assert trl.extract_prompt(whole) == example
        text = trl.apply_chat_template(example, tokenizer)
        assert text["prompt"].endswith("[assistant] ")
        assert (text["chosen"], text["rejected"]) == (f"A good answer {index}. [end]", f"A bad answer {index}. [end]")
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
