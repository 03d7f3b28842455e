"""Each consumer's file format: its form of an example, and its rules for one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.finetune.chats import TEMPLATE_TOKENS, alternation_problem, chat_problem, is_utf8, text_problem
from runner.finetune.examples import Preference, RlTurn, Supervised
from runner.prompts.chat import ChatMessage
from runner.prompts.chat_format import alternating


@dataclass(frozen=True)
class Format:
    """One consumer's form of the examples of one method."""

    name: str
    method: str
    suffix: str
    """What its file names end in, after the model group or agent."""
    line: Callable[[Any], dict[str, Any]]
    """An example that has no problem, as the consumer takes it."""
    problem: Callable[[Any], str | None]
    """Why this consumer cannot train on an example; None where it can."""
    max_bytes: int | None = None
    columns: Mapping[str, str] | None = None
    """The columns of a Parquet file; None: JSON lines."""
    repeats: bool = False
    """Whether a prompt may come again in one file, as RL's do. In another split of the dataset none may."""

    @property
    def validation_suffix(self) -> str:
        stem, _, kind = self.suffix.rpartition(".")
        return f"{stem}.validation.{kind}"


def _assistant(content: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": content}]


def _learnable(messages: Sequence[ChatMessage], unlearnable: frozenset[int]) -> bool:
    return any(m["role"] == "assistant" and i not in unlearnable for i, m in enumerate(messages))


def _supervised_problem(messages: Sequence[ChatMessage], example: Supervised, tokens: Sequence[str]) -> str | None:
    """`messages` are those of the example that are written."""
    if not any(message["role"] == "assistant" for message in example.messages):
        return "no assistant message"
    if not _learnable(messages, example.unlearnable):
        return "no turn that may be learnt"
    return chat_problem(messages, tokens)


def _preference_problem(example: Preference, tokens: Sequence[str]) -> str | None:
    if not example.prompt:
        return "no prompt"
    if example.preferred == example.non_preferred:
        return "preferred equals non-preferred"
    return (
        chat_problem(example.prompt, tokens)
        or text_problem(example.preferred, tokens)
        or text_problem(example.non_preferred, tokens)
    )


# OpenAI

OPENAI_MAX_BYTES = 512 * 10**6


def _openai_sft_problem(example: Supervised) -> str | None:
    return _supervised_problem(example.messages, example, ())


def _openai_sft(example: Supervised) -> dict[str, Any]:
    return {
        "messages": [
            {**message, "weight": 0} if index in example.unlearnable else dict(message)
            for index, message in enumerate(example.messages)
        ]
    }


def _openai_dpo_problem(example: Preference) -> str | None:
    return _preference_problem(example, ())


def _openai_dpo(example: Preference) -> dict[str, Any]:
    return {
        "input": {"messages": [dict(m) for m in example.prompt], "tools": [], "parallel_tool_calls": True},
        "preferred_output": _assistant(example.preferred),
        "non_preferred_output": _assistant(example.non_preferred),
    }


# TRL


def _cut(example: Supervised) -> Sequence[ChatMessage]:
    """The chat before its first turn that must not be learnt, up to the turn before: TRL knows no weights."""
    if not example.unlearnable:
        return example.messages
    before = example.messages[: min(example.unlearnable)]
    end = next((i for i in range(len(before), 0, -1) if before[i - 1]["role"] == "assistant"), 0)
    return before[:end]


def _trl_sft_problem(example: Supervised) -> str | None:
    messages = _cut(example)
    problem = _supervised_problem(messages, example, TEMPLATE_TOKENS)
    if problem is None and messages[0]["role"] == "assistant":
        return "the chat begins with the assistant"
    return problem


def _trl_sft(example: Supervised) -> dict[str, Any]:
    return {"messages": alternating(_cut(example))}


def _trl_dpo_problem(example: Preference) -> str | None:
    return _preference_problem(example, TEMPLATE_TOKENS) or alternation_problem(example.prompt)


def _trl_dpo(example: Preference) -> dict[str, Any]:
    return {
        "prompt": alternating(example.prompt),
        "chosen": _assistant(example.preferred),
        "rejected": _assistant(example.non_preferred),
    }


# verl

VERL_COLUMNS = {
    "data_source": "VARCHAR",
    "prompt": "STRUCT(role VARCHAR, content VARCHAR)[]",
    "ability": "VARCHAR",
    "reward_model": "STRUCT(style VARCHAR, ground_truth BIGINT)",
    "reward": "DOUBLE",
    "extra_info": "STRUCT(split VARCHAR, index BIGINT, run_id VARCHAR, rollout_id VARCHAR, agent VARCHAR, "
    "round BIGINT, reward DOUBLE, response VARCHAR, datapoint_id VARCHAR)",
}


def _verl_rl_problem(example: RlTurn) -> str | None:
    """The response is what was said once, for comparison: the trainer samples its own, so any may stand there."""
    if not math.isfinite(example.reward):
        return "the reward is no number"
    if example.ground_truth not in (0, 1):
        return "no ground truth"
    if not is_utf8(example.response):
        return "not UTF-8"
    return chat_problem(example.prompt, TEMPLATE_TOKENS) or alternation_problem(example.prompt)


def _verl_rl(example: RlTurn) -> dict[str, Any]:
    return {
        "data_source": example.data_source,
        "prompt": alternating(example.prompt),
        "ability": example.ability,
        "reward_model": {"style": "rule", "ground_truth": example.ground_truth},
        "reward": example.reward,
        "extra_info": {
            "split": example.split,
            "index": example.index,
            "run_id": example.run_id,
            "rollout_id": example.rollout_id,
            "agent": example.agent,
            "round": example.round,
            "reward": example.reward,
            "response": example.response,
            "datapoint_id": example.datapoint_id,
        },
    }


_ALL = (
    Format("openai", "sft", ".sft.jsonl", _openai_sft, _openai_sft_problem, OPENAI_MAX_BYTES),
    Format("openai", "dpo", ".dpo.jsonl", _openai_dpo, _openai_dpo_problem, OPENAI_MAX_BYTES),
    Format("trl", "sft", ".sft.trl.jsonl", _trl_sft, _trl_sft_problem),
    Format("trl", "dpo", ".dpo.trl.jsonl", _trl_dpo, _trl_dpo_problem),
    Format("verl", "rl", ".rl.parquet", _verl_rl, _verl_rl_problem, columns=VERL_COLUMNS, repeats=True),
)

FORMATS: Mapping[tuple[str, str], Format] = {(format_.name, format_.method): format_ for format_ in _ALL}
"""By the consumer's name and the method."""
