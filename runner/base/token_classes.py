"""The classes of tokens that are counted."""

TOKEN_CLASSES = (
    "prompt_tokens", "completion_tokens", "cached_tokens", "cache_write_tokens", "reasoning_tokens",
    "audio_input_tokens", "audio_output_tokens",
)  # fmt: skip
"""The names of token counts in usages, records, tables and manifests."""

LATER_CLASSES = TOKEN_CLASSES[3:]
"""The names of token counts that earlier versions did not record."""
