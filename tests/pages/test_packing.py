"""The data of a page's script contain each text once."""

from __future__ import annotations

import gzip
import json
import random

from runner.pages.packing import MIN_SHARED_LENGTH, Texts, compress_json, quotable_texts, resolve_text

SAMPLE_TEXTS = [
    "",
    "short",
    "a" * MIN_SHARED_LENGTH,
    "b" * 500,
    "the same again " * 10,
    "\0\x1b[31m\u202e" * 30,
    "ß" * 100,
]


def test_text_that_quotes_others_is_restored_exactly() -> None:
    rng = random.Random(5)
    texts, stored = Texts(), []
    quoted = quotable_texts(SAMPLE_TEXTS)
    for _ in range(300):
        text = " ".join(rng.choices(SAMPLE_TEXTS, k=rng.randrange(6)))
        stored.append((text, texts.add_quoting(text, quoted)))
    assert all(resolve_text(texts.all, packed) == text for text, packed in stored)


def test_quoted_text_is_stored_only_once() -> None:
    message = "".join(map(chr, random.Random(1).choices(range(65, 91), k=60_000)))
    texts = Texts()
    texts.add(message)
    for number in range(20):
        texts.add_quoting(f"Prover {number} has said this, and it was his turn to say it:\n{message}\nEnd.", [message])
    assert sum(map(len, texts.all)) < 60_000 + 20 * 100


def test_compressed_json_is_deterministic() -> None:
    data = {"a": [1, None, "x"]}
    assert compress_json(data) == compress_json(data)
    assert json.loads(gzip.decompress(compress_json(data))) == data
