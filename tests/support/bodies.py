"""Answers as servers really give them, with all that stands beside the text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

SAID = "Ünï: it holds.\n\nDecision: accept"
THOUGHT = "Let me see. f(0) is 1."


def tokens_of(text: str, size: int = 3) -> list[dict[str, Any]]:
    """A text in tokens of so many bytes, some of which are parts of characters, as OpenAI and vLLM tell them."""
    data = text.encode()
    return [_token(data[at : at + size], -0.25 * (at % 5)) for at in range(0, len(data), size)]


def _token(data: bytes, logprob: float) -> dict[str, Any]:
    spelled = {"token": data.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(data)}
    return {**spelled, "top_logprobs": [dict(spelled), {"token": "~", "logprob": -9999.0, "bytes": [126]}]}


def vllm_body(texts: Sequence[str] = (SAID,)) -> dict[str, Any]:
    """A chat completion of vLLM with log-probabilities, reasoning, a tool call and token ids."""
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"at": "f(0)"}'}}
    choices = [
        {
            "index": index,
            "message": {
                "role": "assistant", "content": text, "refusal": None, "annotations": None, "audio": None,
                "function_call": None, "tool_calls": [call], "reasoning": THOUGHT, "reasoning_content": THOUGHT,
            },
            "logprobs": {"content": [*tokens_of(THOUGHT), *tokens_of(text), *tokens_of("<|im_end|>", 10)]},
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


def openai_body(text: str = SAID) -> dict[str, Any]:
    """A chat completion of OpenAI, all details of its usage told."""
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
