"""The rules of each fine-tuning format, and how dataset files apply them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import RunError
from runner.game.prompts.chat_format import with_alternating_roles
from runner.models.settings import ModelSettings
from runner.results.finetune.deduplication import MAX_IN_MEMORY, DedupIndex, digest
from runner.results.finetune.example_file import ExampleFile, trace_path
from runner.results.finetune.examples import Example, ExampleSource, Preference, RlTurn, SupervisedExample
from runner.results.finetune.formats import FORMATS, Format
from tests.support.files import json_lines, parquet_rows

SFT = [FORMATS["openai", "sft"], FORMATS["trl", "sft"]]
DPO = [FORMATS["openai", "dpo"], FORMATS["trl", "dpo"]]
SOURCE = ExampleSource("run-1", "a1", "verifier", 3, 0.5, "p1")


def make_message(role: str, content: str, name: str | None = None) -> Any:
    return {"role": role, "content": content} if name is None else {"role": role, "name": name, "content": content}


CHAT = [
    make_message("system", "You judge."),
    make_message("user", "It is right.", "Expert"),
    make_message("assistant", "Why?"),
]
LONGER = [*CHAT, make_message("user", "Because.", "Expert"), make_message("assistant", "Decision: accept")]
PROMPT = CHAT[:2]


def make_example(format_: Format, text: str) -> Example:
    """Return an example of the format's method with the text as a user message."""
    prompt = [CHAT[0], make_message("user", text)]
    if format_.method == "sft":
        return SupervisedExample([*prompt, CHAT[2]])
    if format_.method == "dpo":
        return Preference(prompt, "a", "b")
    return RlTurn(prompt, "a", 1.0, 1, "p1")


def format_id(format_: object) -> str:
    return f"{format_.name}-{format_.method}" if isinstance(format_, Format) else str(format_)


# Texts


@pytest.mark.parametrize("format_", FORMATS.values(), ids=format_id)
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "empty content"),
        (" \n\t", "empty content"),
        ("\ufeffhello", "byte-order mark"),
        ("hel\ufefflo", "byte-order mark"),
        ("\ud83d", "not UTF-8"),
        ("a <|fim_suffix|> b", "special token <|...|>"),
        ("<|im_start|>system", "special token <|...|>"),
        ("<|reserved_special_token_7|>", "special token <|...|>"),
        ("<｜begin▁of▁sentence｜>", "special token <|...|>"),
        ("a <|> b <| c |> d", None),
        ("x <|\n|> y", None),
        ("<p>|</p>", None),
    ],
)
def test_texts_that_trainers_reject_are_refused(format_: Format, text: str, problem: str | None) -> None:
    assert format_.problem(make_example(format_, text)) == problem


@pytest.mark.parametrize("token", ["[INST]", "[/INST]", "<start_of_turn>", "<end_of_turn>", "</s>", "<<SYS>>"])
@pytest.mark.parametrize("format_", FORMATS.values(), ids=format_id)
def test_chat_template_tokens_are_refused_for_formats_that_use_templates(format_: Format, token: str) -> None:
    problem = format_.problem(make_example(format_, f"so {token} he said"))
    assert problem == (None if format_.name == "openai" else f"special token {token}")


@pytest.mark.parametrize("format_", FORMATS.values(), ids=format_id)
def test_unknown_role_is_refused(format_: Format) -> None:
    good = make_example(format_, "hello")
    assert format_.problem(good) is None
    odd = make_message("tool", "42")
    if isinstance(good, SupervisedExample):
        bad: Example = replace(good, messages=[odd, *good.messages])
    else:
        bad = replace(good, prompt=[odd, *good.prompt])
    assert format_.problem(bad) == "unknown role tool"


# Supervised


@pytest.mark.parametrize("format_", SFT, ids=format_id)
def test_an_example_needs_an_assistant_message(format_: Format) -> None:
    assert format_.problem(SupervisedExample(PROMPT)) == "no assistant message"
    assert format_.problem(SupervisedExample([])) == "no assistant message"


@pytest.mark.parametrize("format_", SFT, ids=format_id)
def test_example_without_a_learnable_turn_is_omitted(format_: Format) -> None:
    assert format_.problem(SupervisedExample(LONGER, frozenset({2, 4}))) == "no turn that may be learnt"


def test_openai_format_gives_weight_0_only_to_excluded_turns() -> None:
    format_ = FORMATS["openai", "sft"]
    example = SupervisedExample(LONGER, frozenset({2}))
    assert format_.problem(example) is None
    assert format_.line(example) == {"messages": [*LONGER[:2], {**LONGER[2], "weight": 0}, *LONGER[3:]]}
    assert "weight" not in CHAT[2]


def test_openai_format_keeps_the_names_of_senders() -> None:
    assert FORMATS["openai", "sft"].line(SupervisedExample(CHAT)) == {"messages": CHAT}


def test_trl_learns_each_turn_after_its_own_prompt() -> None:
    format_ = FORMATS["trl", "sft"]
    examples = list(format_.examples([SupervisedExample(LONGER, rounds={2: 0, 4: 2})]))
    assert [format_.problem(example) for example in examples] == [None, None]
    assert [(format_.line(example), example.round) for example in examples] == [
        ({"prompt": PROMPT, "completion": [CHAT[2]]}, 0),
        ({"prompt": LONGER[:4], "completion": [LONGER[4]]}, 2),
    ]


def test_excluded_turn_is_part_of_a_trl_prompt_and_never_a_completion() -> None:
    format_ = FORMATS["trl", "sft"]
    (last,) = format_.examples([SupervisedExample(LONGER, frozenset({2}))])
    assert format_.line(last) == {"prompt": LONGER[:4], "completion": [LONGER[4]]}
    (nothing,) = format_.examples([SupervisedExample(LONGER, frozenset({2, 4}))])
    assert format_.problem(nothing) == "no turn that may be learnt"


def test_trl_example_ignores_text_after_its_learned_turn() -> None:
    chat = SupervisedExample([*CHAT, make_message("user", ""), make_message("assistant", "</s>")], frozenset({4}))
    (first,) = FORMATS["trl", "sft"].examples([chat])
    assert FORMATS["trl", "sft"].problem(first) is None
    assert FORMATS["openai", "sft"].problem(chat) == "empty content"


# Alternation


def test_consecutive_opponents_are_merged_into_one_message_with_names() -> None:
    chat = [
        CHAT[0],
        make_message("user", "No.", "Expert_1"),
        make_message("user", "Yes.", "Expert_2"),
        make_message("assistant", "Why?"),
    ]
    assert with_alternating_roles(chat) == [
        CHAT[0],
        make_message("user", "Expert_1: No.\n\nExpert_2: Yes."),
        make_message("assistant", "Why?"),
    ]


def test_a_system_message_in_the_middle_becomes_a_user_message() -> None:
    chat = [
        *CHAT,
        make_message("system", "Last round."),
        make_message("user", "Because.", "Expert"),
        make_message("assistant", "Yes."),
    ]
    assert with_alternating_roles(chat)[3:] == [
        make_message("user", "Instructions: Last round.\n\nExpert: Because."),
        make_message("assistant", "Yes."),
    ]
    after = [*CHAT, make_message("user", "Because.", "Expert"), make_message("system", "Last round.")]
    assert with_alternating_roles(after)[3:] == [make_message("user", "Expert: Because.\n\nInstructions: Last round.")]


def test_a_system_message_answered_at_once_becomes_a_user_message() -> None:
    assert with_alternating_roles([CHAT[0]]) == [make_message("user", "You judge.")]
    assert with_alternating_roles([CHAT[0], make_message("assistant", "Why?")]) == [
        make_message("user", "You judge."),
        make_message("assistant", "Why?"),
    ]
    assert with_alternating_roles([make_message("developer", "Judge."), *CHAT[1:]])[0] == make_message(
        "system", "Judge."
    )


def test_consecutive_turns_of_one_agent_are_merged() -> None:
    assert with_alternating_roles([*CHAT, make_message("assistant", "Hm?")])[-1] == make_message(
        "assistant", "Why?\n\nHm?"
    )


def test_merging_does_not_change_its_input() -> None:
    before = json.dumps(LONGER)
    with_alternating_roles([*LONGER, make_message("assistant", "x")])
    assert json.dumps(LONGER) == before


@pytest.mark.parametrize("key", [("trl", "sft"), ("trl", "dpo"), ("verl", "rl")], ids=str)
def test_prompt_must_neither_begin_nor_end_with_the_assistant(key: tuple[str, str]) -> None:
    def problem(prompt: Any) -> str | None:
        if key[1] == "sft":
            return FORMATS[key].problem(SupervisedExample([*prompt, CHAT[2]]))
        dpo = key[1] == "dpo"
        return FORMATS[key].problem(Preference(prompt, "a", "b") if dpo else RlTurn(prompt, "a", 1.0, 1, "p1"))

    assert problem(PROMPT) is None
    assert problem(CHAT[:1]) is None
    assert str(problem(CHAT)).startswith(
        "the prompt ends with an assistant message; add a user message after it with --chat-format"
    )
    assert problem([CHAT[2], *CHAT[1:2]]) == "the chat begins with the assistant"
    assert problem([]) == "no prompt"


# Preferences


@pytest.mark.parametrize("format_", DPO, ids=format_id)
def test_equal_answers_are_not_a_preference(format_: Format) -> None:
    assert format_.problem(Preference(PROMPT, "a", "a")) == "preferred equals non-preferred"
    assert format_.problem(Preference(PROMPT, "a", "")) == "empty content"
    assert format_.problem(Preference(PROMPT, "<|x|>", "b")) == "special token <|...|>"
    assert format_.problem(Preference([], "a", "b")) == "no prompt"


def test_openai_preferences_have_one_assistant_message_in_each_output() -> None:
    assert FORMATS["openai", "dpo"].line(Preference(PROMPT, "good", "bad")) == {
        "input": {"messages": PROMPT, "tools": [], "parallel_tool_calls": True},
        "preferred_output": [make_message("assistant", "good")],
        "non_preferred_output": [make_message("assistant", "bad")],
    }


def test_trl_preferences_are_conversational() -> None:
    assert FORMATS["trl", "dpo"].line(Preference(PROMPT, "good", "bad")) == {
        "prompt": PROMPT,
        "chosen": [make_message("assistant", "good")],
        "rejected": [make_message("assistant", "bad")],
    }


# Reinforcement


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({}, None),
        ({"response": ""}, None),
        ({"reward": float("nan")}, "the reward is not a number"),
        ({"reward": float("inf")}, "the reward is not a number"),
        ({"ground_truth": 2}, "no ground truth"),
        ({"response": "\udc00"}, "not UTF-8"),
    ],
)
def test_rl_turn_needs_a_reward_and_a_label_but_accepts_any_response(
    changes: dict[str, Any], problem: str | None
) -> None:
    turn = replace(RlTurn(PROMPT, "Why?", 1.0, 1, "p1"), **changes)
    assert FORMATS["verl", "rl"].problem(turn) == problem


def test_a_row_for_verl_has_the_columns_of_verl(tmp_path: Path) -> None:
    turn = RlTurn(PROMPT, "Why?", 0.25, 1, "p1", "run-1", "a1", "verifier", 3, "board/v1", "verifier", index=4)
    file = ExampleFile(tmp_path / "m.rl.parquet", FORMATS["verl", "rl"])
    assert file.add(turn, SOURCE) is None
    assert file.close()["written"]
    (row,) = parquet_rows(tmp_path / "m.rl.parquet")
    assert row == {
        "data_source": "board/v1",
        "prompt": [{**CHAT[0], "name": None}, PROMPT[1]],
        "ability": "verifier",
        "reward_model": {"style": "rule", "ground_truth": 1},
        "reward": 0.25,
        "extra_info": {
            "split": "train", "index": 4, "run_id": "run-1", "rollout_id": "a1", "agent": "verifier", "round": 3,
            "reward": 0.25, "response": "Why?", "datapoint_id": "p1",
        },
    }  # fmt: skip


def test_messages_have_no_name_field_if_senders_are_in_the_text(tmp_path: Path) -> None:
    for changes in ({"chat_format": "alternating"}, {"chat_format": "openai", "send_name": False}):
        format_ = FORMATS["verl", "rl"].for_settings(ModelSettings(**changes))
        file = ExampleFile(tmp_path / "m.rl.parquet", format_)
        assert (
            file.add(RlTurn([CHAT[0], make_message("user", "Expert: It is right.")], "Why?", 1.0, 1, "p1"), SOURCE)
            is None
        )
        file.close()
        (row,) = parquet_rows(tmp_path / "m.rl.parquet")
        assert row["prompt"] == [CHAT[0], make_message("user", "Expert: It is right.")]


# Files


def test_file_suffixes_name_the_method_and_the_consumer() -> None:
    assert {key: (f.suffix, f.validation_suffix) for key, f in FORMATS.items()} == {
        ("openai", "sft"): (".sft.jsonl", ".sft.validation.jsonl"),
        ("openai", "dpo"): (".dpo.jsonl", ".dpo.validation.jsonl"),
        ("trl", "sft"): (".sft.trl.jsonl", ".sft.trl.validation.jsonl"),
        ("trl", "dpo"): (".dpo.trl.jsonl", ".dpo.trl.validation.jsonl"),
        ("verl", "rl"): (".rl.parquet", ".rl.validation.parquet"),
    }


@pytest.mark.parametrize("format_", FORMATS.values(), ids=format_id)
def test_every_line_is_traced(tmp_path: Path, format_: Format) -> None:
    target = tmp_path / ("m" + format_.suffix)
    file = ExampleFile(target, format_)
    for index in range(5):
        bad = index == 2
        source = replace(SOURCE, round=index, other={"rejected_rollout_id": f"b{index}"})
        omitted_reason = file.add(make_example(format_, "" if bad else f"argument {index}"), source)
        assert omitted_reason == ("empty content" if bad else None)
    row = file.close()
    assert json_lines(trace_path(target)) == [
        {
            "line": number, "run_id": "run-1", "rollout_id": "a1", "agent": "verifier", "round": round_,
            "reward": 0.5, "datapoint_id": "p1", "other": {"rejected_rollout_id": f"b{round_}"},
        }
        for number, round_ in enumerate((0, 1, 3, 4), start=1)
    ]  # fmt: skip
    assert row == {
        "file": target.name, "format": format_.name, "for": "m", "examples": 4, "written": True,
        "left_out": {"empty content": 1}, "why_not_written": None,
        "sha256": hashlib.sha256(target.read_bytes()).hexdigest(), "trace": target.name + ".trace.jsonl",
    }  # fmt: skip
    assert {path.name for path in tmp_path.iterdir()} == {target.name, target.name + ".trace.jsonl"}


def test_duplicate_lines_are_written_once_except_rl_rows(tmp_path: Path) -> None:
    for format_, second in ((FORMATS["openai", "sft"], "duplicate line"), (FORMATS["verl", "rl"], None)):
        file = ExampleFile(tmp_path / ("m" + format_.suffix), format_)
        assert file.add(make_example(format_, "hello"), SOURCE) is None
        assert file.add(make_example(format_, "hello"), SOURCE) == second
        assert file.close()["examples"] == (2 if second is None else 1)


def test_resampled_examples_are_repeated_if_the_file_allows_repeats(tmp_path: Path) -> None:
    digests = DedupIndex(tmp_path / ".seen")
    train, validation = (
        ExampleFile(tmp_path / name, FORMATS["trl", "sft"], dedup=digests, scope="m", repeats=True)
        for name in ("m.train", "m.validation")
    )
    assert [train.add(SupervisedExample(CHAT), SOURCE) for _ in range(3)] == [None] * 3
    assert validation.add(SupervisedExample(CHAT), SOURCE) == "already in m.train"
    assert (train.close()["examples"], validation.close()["examples"]) == (3, 0)
    digests.close()


@pytest.mark.parametrize("format_", FORMATS.values(), ids=format_id)
def test_example_of_one_split_is_refused_in_the_other(tmp_path: Path, format_: Format) -> None:
    digests = DedupIndex(tmp_path / ".seen")
    train = ExampleFile(tmp_path / "m.train", format_, dedup=digests, scope="m")
    validation = ExampleFile(tmp_path / "m.validation", format_, dedup=digests, scope="m")
    other_group = ExampleFile(tmp_path / "n.train", format_, dedup=digests, scope="n")
    example = make_example(format_, "hello")
    assert train.add(example, SOURCE) is None
    assert validation.add(example, SOURCE) == "already in m.train"
    assert other_group.add(example, SOURCE) is None
    for file in (train, validation, other_group):
        file.discard()
    digests.close()
    assert list(tmp_path.iterdir()) == []


def test_full_file_refuses_examples_with_the_reason(tmp_path: Path) -> None:
    openai = FORMATS["openai", "sft"]
    assert openai.max_bytes == FORMATS["openai", "dpo"].max_bytes == 512 * 10**6
    file = ExampleFile(tmp_path / "m.sft.jsonl", replace(openai, max_bytes=300))
    texts = ["a", "b" * 200, "c"]
    assert [file.add(make_example(openai, text), SOURCE) for text in texts] == [
        None, *["the file is full: openai accepts at most 300 bytes"] * 2,
    ]  # fmt: skip
    row = file.close()
    assert (row["examples"], row["left_out"]) == (1, {"the file is full: openai accepts at most 300 bytes": 2})
    assert (tmp_path / "m.sft.jsonl").stat().st_size <= 300


def test_discarded_file_keeps_the_old_one(tmp_path: Path) -> None:
    format_ = FORMATS["trl", "sft"]
    target = tmp_path / "m.sft.trl.jsonl"
    first = ExampleFile(target, format_)
    first.add(SupervisedExample(CHAT), SOURCE)
    first.close()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    second = ExampleFile(target, format_)
    second.add(SupervisedExample(LONGER), SOURCE)
    second.discard()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_too_few_examples_write_no_file_and_remove_the_old_one(tmp_path: Path) -> None:
    format_ = FORMATS["verl", "rl"]
    for fewest in (1, 2):
        file = ExampleFile(tmp_path / "m.rl.parquet", format_, min_examples=fewest)
        file.add(make_example(format_, "hello"), SOURCE)
        row = file.close()
    assert (row["written"], row["sha256"], row["trace"]) == (False, None, None)
    assert row["why_not_written"] == "1 examples, fewer than min_examples (2)"
    assert list(tmp_path.iterdir()) == []


def test_unwritable_path_raises_run_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot write"):
        ExampleFile(tmp_path / "file" / "m.sft.jsonl", FORMATS["openai", "sft"])


def test_duplicates_are_found_in_memory_and_in_the_file(tmp_path: Path) -> None:
    digests = DedupIndex(tmp_path / ".seen")
    keys = [digest(b"%d" % number) for number in range(MAX_IN_MEMORY + 2)]
    assert {digests.add("sft", key, "a.jsonl") for key in keys} == {None}
    assert [digests.add("sft", key, "b.jsonl") for key in (keys[0], keys[MAX_IN_MEMORY - 1], keys[-1])] == [
        "a.jsonl"
    ] * 3
    assert digests.add("rl", keys[0], "b.jsonl") is None
    digests.close()
    assert not (tmp_path / ".seen").exists()
