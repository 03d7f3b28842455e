"""What a page's script gets: bytes as text that HTML leaves alone, and each text once."""

from __future__ import annotations

import gzip
import json
import random

import pytest

from runner.pages.base85 import ALPHABET, decoded, encoded
from runner.pages.packing import LONG, Texts, by_length, packed, read


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 5, 7, 8, 1000, 4095])
def test_bytes_come_back_and_take_five_characters_for_four(size: int) -> None:
    data = random.Random(size).randbytes(size)
    text = encoded(data)
    assert decoded(text) == data
    assert len(text) == size + -(-size // 4)


def test_the_extremes_of_a_group_come_back() -> None:
    data = b"\0\0\0\0\xff\xff\xff\xff\0\0\0\1\xff"
    assert decoded(encoded(data)) == data


def test_no_character_means_anything_in_html_or_a_script() -> None:
    assert len(set(ALPHABET)) == 85
    assert not set(ALPHABET) & set("\"&'<>\\`$-\n ")


@pytest.mark.parametrize("text", ["é0000", "<0000", ALPHABET[84] * 5])
def test_what_is_not_base_85_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not base 85"):
        decoded(text)


WORDS = ["", "short", "a" * LONG, "b" * 500, "the same again " * 10, "\0\x1b[31m\u202e" * 30, "ß" * 100]


def test_a_text_that_quotes_others_is_read_as_it_was() -> None:
    draw = random.Random(5)
    texts, kept = Texts(), []
    quoted = by_length(WORDS)
    for _ in range(300):
        text = " ".join(draw.choices(WORDS, k=draw.randrange(6)))
        kept.append((text, texts.quoting(text, quoted)))
    assert all(read(texts.all, packed_) == text for text, packed_ in kept)


def test_a_quoted_text_costs_only_a_number() -> None:
    message = "".join(map(chr, random.Random(1).choices(range(65, 91), k=60_000)))
    texts = Texts()
    texts.add(message)
    for number in range(20):
        texts.quoting(f"Prover {number} has said this, and it was his turn to say it:\n{message}\nEnd.", [message])
    assert sum(map(len, texts.all)) < 60_000 + 20 * 100


def test_the_same_data_are_the_same_bytes() -> None:
    data = {"a": [1, None, "x"]}
    assert packed(data) == packed(data)
    assert json.loads(gzip.decompress(packed(data))) == data
