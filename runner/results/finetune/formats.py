"""File formats of training tools. Each format writes examples as lines, and checks which examples the tool accepts."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from runner.base.text import encoding_problem
from runner.game.prompts.chat import ChatMessage
from runner.models.settings import ModelSettings
from runner.results.finetune.examples import Preference, RlTurn, RolloutExample, SupervisedExample


@dataclass(frozen=True)
class Format:
    """A tool's file format for the examples of one method."""

    name: str
    """The name of the training tool."""
    method: str
    """`sft` (supervised), `dpo` (preferences) or `rl` (reinforcement learning)."""
    suffix: str
    """The suffix of file names, after the name of the model group or agent."""
    line: Callable[[Any], dict[str, Any]]
    """Converts a valid example to the JSON object of a line."""
    problem: Callable[[Any], str | None]
    """Returns the reason why the tool cannot train on an example, or None."""
    max_bytes: int | None = None
    columns: Mapping[str, str] | None = None
    """The columns of a Parquet file; None for JSON lines."""
    repeats: bool = False
    """Whether a prompt may occur several times in one file, as for RL. Even then, no two splits share a prompt."""
    single_turns: bool = False
    """Whether a line has only one turn to learn, its last message."""
    unnamed_columns: Mapping[str, str] | None = None
    """The columns if messages do not name their sender: without `name`, which would be null in each message."""

    @property
    def validation_suffix(self) -> str:
        stem, _, kind = self.suffix.rpartition(".")
        return f"{stem}.validation.{kind}"

    def for_settings(self, settings: ModelSettings) -> Format:
        """Return this format for the chats of a model group with these settings."""
        has_names = settings.send_name and settings.resolved_chat_format != "alternating"
        return self if has_names or self.unnamed_columns is None else replace(self, columns=self.unnamed_columns)

    def examples(self, examples: Iterable[RolloutExample]) -> Iterator[RolloutExample]:
        """Yield the examples as the format needs them: each becomes a line, or is rejected by `problem`."""
        for example in examples:
            if self.single_turns and isinstance(example, SupervisedExample) and example.learned:
                yield from example.single_turns()
            else:
                yield example


def _assistant_messages(content: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": content}]


def _supervised_problem(example: SupervisedExample, tokens: tuple[str, ...] = ()) -> str | None:
    if not any(message["role"] == "assistant" for message in example.messages):
        return "no assistant message"
    if not example.learned:
        return "no turn that may be learnt"
    return chat_problem(example.messages, tokens)


def _preference_problem(example: Preference, tokens: tuple[str, ...] = ()) -> str | None:
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


def _openai_sft(example: SupervisedExample) -> dict[str, object]:
    return {
        "messages": [
            {**message, "weight": 0} if index in example.unlearnable else dict(message)
            for index, message in enumerate(example.messages)
        ]
    }


def _openai_dpo(example: Preference) -> dict[str, object]:
    return {
        "input": {"messages": [dict(message) for message in example.prompt], "tools": [], "parallel_tool_calls": True},
        "preferred_output": _assistant_messages(example.preferred),
        "non_preferred_output": _assistant_messages(example.non_preferred),
    }


# TRL


def _trl_sft_problem(example: SupervisedExample) -> str | None:
    return _supervised_problem(example, TEMPLATE_TOKENS) or turn_problem(example.messages[:-1])


def _trl_sft(example: SupervisedExample) -> dict[str, object]:
    """Return a prompt and its completion. From a complete chat, TRL would also learn messages of other agents."""
    *prompt, answer = example.messages
    return {"prompt": [dict(message) for message in prompt], "completion": [dict(answer)]}


def _trl_dpo_problem(example: Preference) -> str | None:
    return _preference_problem(example, TEMPLATE_TOKENS) or turn_problem(example.prompt)


def _trl_dpo(example: Preference) -> dict[str, object]:
    return {
        "prompt": [dict(message) for message in example.prompt],
        "chosen": _assistant_messages(example.preferred),
        "rejected": _assistant_messages(example.non_preferred),
    }


# verl

VERL_COLUMNS = {
    "data_source": "VARCHAR",
    "prompt": "STRUCT(role VARCHAR, name VARCHAR, content VARCHAR)[]",
    "ability": "VARCHAR",
    "reward_model": "STRUCT(style VARCHAR, ground_truth BIGINT)",
    "reward": "DOUBLE",
    "extra_info": "STRUCT(split VARCHAR, index BIGINT, run_id VARCHAR, rollout_id VARCHAR, agent VARCHAR, "
    "round BIGINT, reward DOUBLE, response VARCHAR, datapoint_id VARCHAR)",
}

VERL_UNNAMED_COLUMNS = {**VERL_COLUMNS, "prompt": "STRUCT(role VARCHAR, content VARCHAR)[]"}


def _verl_rl_problem(example: RlTurn) -> str | None:
    """Return the reason why verl cannot train on a turn, or None. verl ignores the response, so any text is valid."""
    if not math.isfinite(example.reward):
        return "the reward is not a number"
    if example.ground_truth not in (0, 1):
        return "no ground truth"
    if encoding_problem(example.response) is not None:
        return "not UTF-8"
    return chat_problem(example.prompt, TEMPLATE_TOKENS) or turn_problem(example.prompt)


def _verl_rl(example: RlTurn) -> dict[str, object]:
    return {
        "data_source": example.data_source,
        "prompt": [dict(message) for message in example.prompt],
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


_FORMATS = (
    Format("openai", "sft", ".sft.jsonl", _openai_sft, _supervised_problem, OPENAI_MAX_BYTES),
    Format("openai", "dpo", ".dpo.jsonl", _openai_dpo, _preference_problem, OPENAI_MAX_BYTES),
    Format("trl", "sft", ".sft.trl.jsonl", _trl_sft, _trl_sft_problem, single_turns=True),
    Format("trl", "dpo", ".dpo.trl.jsonl", _trl_dpo, _trl_dpo_problem),
    Format(
        "verl", "rl", ".rl.parquet", _verl_rl, _verl_rl_problem,
        columns=VERL_COLUMNS, repeats=True, unnamed_columns=VERL_UNNAMED_COLUMNS,
    ),
)  # fmt: skip

FORMATS: Mapping[tuple[str, str], Format] = {(format_.name, format_.method): format_ for format_ in _FORMATS}
"""The formats by the name of the training tool and the method."""


ALTERNATING_OPTION = "--chat-format alternating (in a spec, fine_tune.chat_format: alternating)"
"""The option for chat templates that need alternating turns of user and assistant."""

ROLES = ("system", "developer", "user", "assistant")

_SPECIAL_TOKEN = re.compile(r"<[|｜][^|｜<>\s]+[|｜]>")
"""`<|im_start|>` and similar tokens. DeepSeek's tokens have full-width bars."""

TEMPLATE_TOKENS = (
    "[INST]", "[/INST]", "<<SYS>>", "<</SYS>>", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CALLS]", "[TOOL_RESULTS]",
    "[AVAILABLE_TOOLS]", "<start_of_turn>", "<end_of_turn>", "<bos>", "<eos>", "<s>", "</s>",
)  # fmt: skip
"""Control tokens of other common chat templates: Mistral's, Llama 2's and Gemma's."""


_CACHED_LENGTH = 4096
"""Maximum number of characters of texts whose result is cached, since instructions occur in many examples."""


def text_problem(text: str, tokens: tuple[str, ...] = ()) -> str | None:
    """Return why a text cannot be in a dataset, or None. It must contain neither `<|...|>` nor any of `tokens`."""
    return _short_text_problem(text, tokens) if len(text) <= _CACHED_LENGTH else _text_problem(text, tokens)


def _text_problem(text: str, tokens: tuple[str, ...]) -> str | None:
    if not text.strip():
        return "empty content"
    if "\ufeff" in text:
        return "byte-order mark"
    if encoding_problem(text) is not None:  # the JSON of an answer can contain half of a surrogate pair
        return "not UTF-8"
    if _SPECIAL_TOKEN.search(text):
        return "special token <|...|>"
    token = next((token for token in tokens if token in text), None)
    return f"special token {token}" if token else None


_short_text_problem = lru_cache(maxsize=256)(_text_problem)


def chat_problem(messages: Sequence[ChatMessage], tokens: tuple[str, ...] = ()) -> str | None:
    """Return why a chat cannot be in a dataset, or None."""
    for message in messages:
        if message["role"] not in ROLES:
            return f"unknown role {message['role']}"
        problem = text_problem(message["content"], tokens)
        if problem:
            return problem
    return None


def turn_problem(prompt: Sequence[ChatMessage]) -> str | None:
    """Return why an answer cannot follow a prompt if a chat template needs alternating turns; None if it can."""
    if not prompt:
        return "no prompt"
    if prompt[-1]["role"] == "assistant":
        return f"the prompt ends with an assistant message; add a user message after it with {ALTERNATING_OPTION}"
    return None if prompt[0]["role"] != "assistant" else "the chat begins with the assistant"
