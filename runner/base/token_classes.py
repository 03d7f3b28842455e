"""The classes of tokens that are counted."""

TOKEN_CLASSES = (
    "prompt_tokens", "completion_tokens", "cached_tokens", "cache_write_tokens", "reasoning_tokens",
    "audio_input_tokens", "audio_output_tokens",
)  # fmt: skip
"""The names of token counts in usages, records, tables and manifests."""

NEW_TOKEN_CLASSES = TOKEN_CLASSES[3:]
"""The names of token counts that 0.1.0 did not record."""
