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

_KEYS = frozenset(field.name for field in fields(ModelSettings)) - {"provider", "run", "lineage"}
"""Keys of a model group; routers have other keys by the names that are left out here."""

_ALIASES = {
    "base_url": "api_base",
    "api_key_env": "api_key",
    "n": "best_of candidate_count num_return_sequences n_samples num_completions num_samples use_beam_search",
    "max_tokens": "max_gen_len max_length max_new_tokens max_tokens_to_sample n_predict num_predict",
    "max_completion_tokens": "max_output_tokens",
    "timeout": "request_timeout",
    "stop": "stop_sequences",
}
"""Other names for keys of a model group, as servers and routers have them."""

_PRICED = "audio cache_control inference_geo modalities processing_tier provider service_tier speed tier"

_REFUSED = {
    "nip-run sets this itself in each request; leave it out": "messages prompt input stream stream_options system",
    "this can answer with another model than the one that is priced and shown; set {group}.model": (
        "adapter adapter_id adapter_name adapters content_policy_fallbacks context_window_fallbacks "
        "custom_llm_provider default_fallbacks deployment deployment_id engine engine_id fallbacks lora lora_path "
        "lora_request merged_adapters mock_response model_group model_id model_list model_name models preset route"
    ),
    "this is billed by the call, for which there is no price here; leave it out": (
        "enable_search plugins search_parameters web_search web_search_options"
    ),
    "this changes the price; set {group}.price to what a token costs with it": _PRICED,
    "this changes the request and not its body; leave it out": "extra_headers extra_query",
    "what stands here would be sent as a part of the body; write its keys one level up": "extra_body",
}
"""Why a key is refused, with the keys."""


_ONLY_FUNCTIONS = (
    "each tool is a mapping with `type: function`; others are billed by the call, for which there is no price"
)


def _folded(name: str) -> str:
    return re.sub(r"[\W_]+", "", normalize("NFKC", normalize("NFKC", name).casefold()))


def _messages() -> Iterator[tuple[str, str]]:
    """Yield each refused key with the reason; a later reason holds."""
    for key in _KEYS:
        for name in (key, *_ALIASES.get(key, "").split()):
            yield _folded(name), f"this has a key of its own; set {{group}}.{key}"
    for message, names in _REFUSED.items():
        for name in names.split():
            yield _folded(name), message


_MESSAGES = dict(_messages())
_PRICED_KEYS = frozenset(map(_folded, _PRICED.split()))


def extra_body_problems(
    body: Mapping[str, Any], group: str, *, priced: bool, tiers: Collection[str] = ()
) -> Iterator[tuple[str, str]]:
    """Yield each key that must not stand in a group's `extra_body`, and why.

    `priced`: the group has a price of its own; `tiers` are the service tiers whose price is known otherwise.
    """
    for key, value in body.items():
        folded = _folded(key)
        if (key == "service_tier" and value in tiers) or (priced and folded in _PRICED_KEYS):
            continue
        if folded == "tools":
            if not (value is None or (isinstance(value, list) and all(map(_is_function, value)))):
                yield key, _ONLY_FUNCTIONS
        elif folded in _MESSAGES:
            yield key, _MESSAGES[folded].format(group=f"models.{group}")


def _is_function(tool: Any) -> bool:
    return isinstance(tool, Mapping) and tool.get("type") == "function"
