"""A page's script gets each text once."""

from __future__ import annotations

import gzip
import json
import random

from runner.pages.packing import MIN_SHARED_LENGTH, Texts, compress_json, quotable_texts, resolve_text

WORDS = ["", "short", "a" * MIN_SHARED_LENGTH, "b" * 500, "the same again " * 10, "\0\x1b[31m\u202e" * 30, "ß" * 100]


def test_a_text_that_quotes_others_is_read_as_it_was() -> None:
    draw = random.Random(5)
    texts, kept = Texts(), []
    quoted = quotable_texts(WORDS)
    for _ in range(300):
        text = " ".join(draw.choices(WORDS, k=draw.randrange(6)))
        kept.append((text, texts.add_quoting(text, quoted)))
    assert all(resolve_text(texts.all, packed_) == text for text, packed_ in kept)


def test_a_quoted_text_costs_only_a_number() -> None:
    message = "".join(map(chr, random.Random(1).choices(range(65, 91), k=60_000)))
    texts = Texts()
    texts.add(message)
    for number in range(20):
        texts.add_quoting(f"Prover {number} has said this, and it was his turn to say it:\n{message}\nEnd.", [message])
    assert sum(map(len, texts.all)) < 60_000 + 20 * 100


def test_the_same_data_are_the_same_bytes() -> None:
    data = {"a": [1, None, "x"]}
    assert compress_json(data) == compress_json(data)
    assert json.loads(gzip.decompress(compress_json(data))) == data
