"""Complete chat completions as real servers send them, with all fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

ANSWER_TEXT = "Ünï: it holds.\n\nDecision: accept"
REASONING = "Let me see. f(0) is 1."


def make_logprobs(text: str, size: int = 3) -> list[dict[str, Any]]:
    """Return the log-probabilities of a text, as OpenAI and vLLM send them, with tokens of `size` bytes.

    Some of these tokens end in the middle of a character.
    """
    data = text.encode()
    return [_make_logprob(data[offset : offset + size], -0.25 * (offset % 5)) for offset in range(0, len(data), size)]


def _make_logprob(data: bytes, logprob: float) -> dict[str, Any]:
    entry = {"token": data.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(data)}
    return {**entry, "top_logprobs": [dict(entry), {"token": "~", "logprob": -9999.0, "bytes": [126]}]}


def vllm_body(texts: Sequence[str] = (ANSWER_TEXT,)) -> dict[str, Any]:
    """Return a chat completion of vLLM with log-probabilities, reasoning, a tool call and token ids."""
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"at": "f(0)"}'}}
    choices = [
        {
            "index": index,
            "message": {
                "role": "assistant", "content": text, "refusal": None, "annotations": None, "audio": None,
                "function_call": None, "tool_calls": [call], "reasoning": REASONING, "reasoning_content": REASONING,
            },
            "logprobs": {
                "content": [*make_logprobs(REASONING), *make_logprobs(text), *make_logprobs("<|im_end|>", 10)],
            },
            "finish_reason": "stop", "stop_reason": None, "token_ids": [9906 + index, 1917, 2**40],
        }
        for index, text in enumerate(texts)
    ]  # fmt: skip
    return {
        "id": "chatcmpl-3f1c", "object": "chat.completion", "created": 1_790_000_000, "model": "tiny",
        "choices": choices, "service_tier": None, "system_fingerprint": "vllm-0.11", "prompt_logprobs": None,
        "usage": {
            "prompt_tokens": 400, "total_tokens": 413, "completion_tokens": 13, "prompt_tokens_details": None,
            "completion_tokens_details": {"reasoning_tokens": 7},
        },
        "prompt_token_ids": [1, 2, 3], "kv_transfer_params": None,
    }  # fmt: skip


def openai_body(text: str = ANSWER_TEXT) -> dict[str, Any]:
    """Return a chat completion of OpenAI with all details of its usage."""
    return {
        "id": "chatcmpl-B9MHDbslfkBeAs8l4bebGdFOJ6PeG", "object": "chat.completion", "created": 1_741_570_283,
        "model": "gpt-4o-mini-2024-07-18",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text, "refusal": None, "annotations": []},
                "logprobs": None, "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 1117, "completion_tokens": 46, "total_tokens": 1163,
            "prompt_tokens_details": {"cached_tokens": 1024, "audio_tokens": 0},
            "completion_tokens_details": {
                "reasoning_tokens": 0, "audio_tokens": 0, "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
            },
        },
        "service_tier": "default", "system_fingerprint": "fp_fc9f1d7035",
    }  # fmt: skip
