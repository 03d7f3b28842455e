"""The `extra_body` of a model group: what must not stand in it, since it has a key of its own or goes behind one.

A key that is sent twice is one that the server chooses between: `extra_body: {model: ...}` would be another model than
the one that is priced, counted in the budget and shown on the board. Names are compared as the most lenient server
does: some read `Model`, `MODEL`, `ſtream` and even full-width letters as the key that is meant, and camel case for
underscores.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields
from typing import Any
from unicodedata import normalize

from runner.models.settings import ModelSettings

_ELSEWHERE = frozenset(("provider", "run", "lineage"))
"""Keys of a model group that say nothing of a request; routers have other keys by the first name."""

_OWN = {field.name: field.name for field in fields(ModelSettings) if field.name not in _ELSEWHERE}
_ALIASES = {
    "api_base": "base_url",
    "api_key": "api_key_env",
    "best_of": "n",
    "candidate_count": "n",
    "num_return_sequences": "n",
    "max_gen_len": "max_tokens",
    "max_length": "max_tokens",
    "max_new_tokens": "max_tokens",
    "max_output_tokens": "max_completion_tokens",
    "max_tokens_to_sample": "max_tokens",
    "n_predict": "max_tokens",
    "n_samples": "n",
    "num_completions": "n",
    "num_predict": "max_tokens",
    "num_samples": "n",
    "request_timeout": "timeout",
    "stop_sequences": "stop",
    "use_beam_search": "n",
}
"""Other names of what has a key, as servers and routers have them."""

_SET_BY_US = frozenset(("messages", "prompt", "input", "stream", "stream_options", "system"))
"""What a request is made of, and the form of its answer: no spec sets these."""

_OTHER_MODELS = frozenset(
    (
        "adapter", "adapter_id", "adapter_name", "adapters", "content_policy_fallbacks", "context_window_fallbacks",
        "custom_llm_provider", "default_fallbacks", "deployment", "deployment_id", "engine", "engine_id", "fallbacks",
        "lora", "lora_path", "lora_request", "merged_adapters", "mock_response", "model_group", "model_id",
        "model_list", "model_name", "models", "preset", "route",
    )
)  # fmt: skip
"""Ways round `model` that routers and servers of adapters have."""

_BY_THE_CALL = frozenset(("enable_search", "plugins", "search_parameters", "web_search", "web_search_options"))
"""What is billed by the call, so that no price of tokens holds for it."""

_PRICED = frozenset(
    (
        "audio",
        "cache_control",
        "inference_geo",
        "modalities",
        "processing_tier",
        "provider",
        "service_tier",
        "speed",
        "tier",
    )
)
"""What changes the price of a token."""

_TOOLS = "tools"
"""What the model may call: a function of ours costs its tokens, and a tool of the server a fee for each call."""


def _folded(name: str) -> str:
    return re.sub(r"[\W_]+", "", normalize("NFKC", normalize("NFKC", name).casefold()))


_BY_FOLDED: Mapping[str, str] = {
    _folded(name): name
    for name in (
        *_OWN,
        *_ALIASES,
        *_SET_BY_US,
        *_OTHER_MODELS,
        *_BY_THE_CALL,
        *_PRICED,
        _TOOLS,
        "extra_headers",
        "extra_query",
    )
}


def extra_body_problems(
    body: Mapping[str, Any], group: str, *, priced: bool, tiers: Collection[str] = ()
) -> Iterator[tuple[str, str]]:
    """Each key that must not stand in a group's `extra_body`, and why.

    `priced`: the group has a price of its own; `tiers` are the service tiers whose price is known otherwise.
    """
    for key, value in body.items():
        if key == "service_tier" and value in tiers:
            continue
        name = _BY_FOLDED.get(_folded(key))
        message = _tools_refusal(value) if name == _TOOLS else _refusal(name, group, priced=priced)
        if message is not None:
            yield key, message


def _tools_refusal(tools: Any) -> str | None:
    """Whatever its price of tokens is, a group has none for a call of a tool that the server runs."""
    if tools is None or (isinstance(tools, list) and all(_is_function(tool) for tool in tools)):
        return None
    return "each tool is a mapping with `type: function`; others are billed by the call, for which there is no price"


def _is_function(tool: Any) -> bool:
    return isinstance(tool, Mapping) and tool.get("type") == "function"


def _refusal(name: str | None, group: str, *, priced: bool) -> str | None:
    own = f"models.{group}"
    if name is None or (name in _PRICED and priced):
        return None
    if name == "extra_body":
        return "what stands here would be sent as a part of the body; write its keys one level up"
    if name in _OWN or name in _ALIASES:
        return f"this has a key of its own; set {own}.{_OWN.get(name) or _ALIASES[name]}"
    if name in _SET_BY_US:
        return "nip-run sets this itself in each request; leave it out"
    if name in _OTHER_MODELS:
        return f"this can answer with another model than the one that is priced and shown; set {own}.model"
    if name in _BY_THE_CALL:
        return "this is billed by the call, for which there is no price here; leave it out"
    if name in _PRICED:
        return f"this changes the price; set {own}.price to what a token costs with it"
    return "this changes the request and not its body; leave it out"
