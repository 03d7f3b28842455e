"""Checks a model group's `extra_body`. Keys that have their own setting in a spec, or would bypass one, are refused.

If a body has a key twice, the server uses one of the values. So `extra_body: {model: ...}` could call another model
than the one that is priced, counted in the budget and shown on the leaderboard. Names are compared like in the most
lenient servers. Some accept `Model`, `MODEL`, `ſtream`, full-width letters, and camel case instead of underscores.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields
from typing import Any
from unicodedata import normalize

from runner.models.settings import ModelSettings

_KEYS_OR_FIELDS = frozenset({"service_tier", "prompt_cache_key"})
"""Keys of a model group that may be in `extra_body` instead, because they were once only possible there."""

_KEYS = frozenset(field.name for field in fields(ModelSettings)) - {"provider", "run", "lineage"} - _KEYS_OR_FIELDS
"""Keys of a model group that must not be in `extra_body`. The three exceptions have another meaning at routers."""

_ALIASES = {
    "base_url": "api_base",
    "api_key_env": "api_key",
    "n": "best_of candidate_count num_return_sequences n_samples num_completions num_samples use_beam_search",
    "max_tokens": "max_gen_len max_length max_new_tokens max_tokens_to_sample n_predict num_predict",
    "max_completion_tokens": "max_output_tokens",
    "timeout": "request_timeout",
    "stop": "stop_sequences",
}
"""Names that servers and routers use for keys of a model group."""

_PRICE_CHANGING = "audio cache_control inference_geo modalities processing_tier provider service_tier speed tier"

_REFUSED = {
    "nip-run sets this key itself in each request; leave it out": "messages prompt input stream stream_options system",
    "this can select another model than the one that is priced and shown; set {group}.model": (
        "adapter adapter_id adapter_name adapters content_policy_fallbacks context_window_fallbacks "
        "custom_llm_provider default_fallbacks deployment deployment_id engine engine_id fallbacks lora lora_path "
        "lora_request merged_adapters mock_response model_group model_id model_list model_name models preset route"
    ),
    "servers bill this per call, and nip-run has no prices per call; leave it out": (
        "enable_search plugins search_parameters web_search web_search_options"
    ),
    "this key changes the price of a token; set {group}.price to this price": _PRICE_CHANGING,
    "this changes the request outside its body; leave it out": "extra_headers extra_query",
    "the value would be sent as a field of the body; write its keys one level up": "extra_body",
}
"""Refused keys, by the reason that users see."""


_ONLY_FUNCTIONS = (
    "each tool must be a mapping with `type: function`; others are billed per call, and nip-run has no prices per call"
)


def _normalize_key(name: str) -> str:
    return re.sub(r"[\W_]+", "", normalize("NFKC", normalize("NFKC", name).casefold()))


def _refusal_reasons() -> Iterator[tuple[str, str]]:
    """Yield each refused key with the reason. If a key has several reasons, the last one applies."""
    for key in _KEYS:
        for name in (key, *_ALIASES.get(key, "").split()):
            yield _normalize_key(name), f"this has its own key; set {{group}}.{key}"
    for reason, names in _REFUSED.items():
        for name in names.split():
            yield _normalize_key(name), reason


_REASONS = dict(_refusal_reasons())
_NORMALIZED_KEYS_OR_FIELDS = {_normalize_key(name): name for name in _KEYS_OR_FIELDS}
_PRICE_CHANGING_KEYS = frozenset(map(_normalize_key, _PRICE_CHANGING.split()))


def extra_body_problems(
    body: Mapping[str, object], group: str, *, priced: bool, tiers: Collection[str] = (), keys: Collection[str] = ()
) -> Iterator[tuple[str, str]]:
    """Yield each key that a group's `extra_body` must not contain, with the reason.

    `priced` says whether the spec sets the group's price. `tiers` are the service tiers with known prices. `keys` are
    the keys that the group sets.
    """
    for key, value in body.items():
        normalized = _normalize_key(key)
        own_key = _NORMALIZED_KEYS_OR_FIELDS.get(normalized)
        if own_key in keys:
            yield key, f"models.{group}.{own_key} sets the same field; remove one of the two"
        elif (key == "service_tier" and value in tiers) or (priced and normalized in _PRICE_CHANGING_KEYS):
            continue
        elif normalized == "tools":
            if not (value is None or (isinstance(value, list) and all(map(_is_function, value)))):
                yield key, _ONLY_FUNCTIONS
        elif normalized in _REASONS:
            yield key, _REASONS[normalized].format(group=f"models.{group}")


def _is_function(tool: Any) -> bool:
    return isinstance(tool, Mapping) and tool.get("type") == "function"
