"""Detect whether a run that claims to reproduce another one copied its answers, by comparing the two journals.

If a model is sampled again, most answers are worded differently. A copied journal has the same words, and a copy with
small changes nearly the same. So answers are compared by the words, or triples of words, that they share. Two answers
with the same id from the provider are the same answer. This does not detect answers that were rewritten completely
without the model, and it cannot distinguish a model from another one that answers alike.
"""

from __future__ import annotations

import secrets
import shutil
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson

from runner.base.storage.safe_files import create, make_folders, remove_folder
from runner.documents.releases.manifest import Release
from runner.models.journal_records import CallRecord, read_records
from runner.registry.transports.listing import ReleaseEntry
from runner.registry.transports.registry import Registry

PublishedRun = tuple[ReleaseEntry, Release]
"""A published run: its entry in the registry and its manifest."""

JOURNAL = "data/journal.jsonl"
MIN_WORDS = 8
"""Minimum number of words of an answer to compare: shorter ones, such as a lone verdict, coincide by chance."""
MAX_WORDS = 500
"""Maximum number of words to compare of each answer."""
MAX_ANSWERS = 20_000
"""Maximum number of answers to compare, chosen at random, so that a publisher cannot know which ones."""
MIN_PAIRS = 20
"""Minimum number of long answers in the same places of both runs; fewer prove nothing."""
SHORT_WORDS = 40
"""Number of words below which answers are compared word by word; longer ones are compared by triples of words."""
ALIKE_SHORT, ALIKE_LONG = 0.6, 0.3
"""Minimum overlap (Jaccard index) of two answers that count as one with changes. Two samples for one prompt share
most of their common words but few triples; changing one word changes three triples."""
COPY_SHARE = 0.25
"""Share of alike answers above which a run counts as a copy."""
_SKETCH_HASHES = 32
_SHORTEST_ID = 8


@dataclass(frozen=True)
class AnswerOverlap:
    """The similarity of two journals."""

    pairs: int
    """Number of pairs of long answers in the same place of both journals."""
    alike: int
    """Number of pairs whose answers are equal or nearly equal."""
    shared_ids: int
    """Number of answers with an id from the provider that is in both journals."""

    @property
    def is_copy(self) -> bool:
        return self.shared_ids > 0 or self.alike > COPY_SHARE * self.pairs

    @property
    def is_enough(self) -> bool:
        return self.pairs >= MIN_PAIRS

    def __str__(self) -> str:
        if self.shared_ids:
            return f"{self.shared_ids:,} of its answers have the same provider ids as answers of the original run"
        if not self.is_enough:
            return f"its answers are too short or too few ({self.pairs:,}) to distinguish new answers from copied ones"
        return f"{self.alike:,} of {self.pairs:,} answers are equal or nearly equal to those of the original run"


def compare_answers(registry: Registry, original: PublishedRun, again: PublishedRun, place: Path) -> AnswerOverlap:
    """Compare the answers in the journals of two published runs.

    Raises:
        NipRunError: a run has no readable journal.
    """
    salt = secrets.token_bytes(8)
    size = max(int(release.facts.get("completions") or 0) for _, release in (original, again))
    part = min(1.0, MAX_ANSWERS / max(size, 1))
    folder = place / secrets.token_hex(8)
    make_folders(folder)
    try:
        first = dict(_answers(registry, original[0], folder, salt, part))
        ids = {answer.provider_id for answer in first.values() if answer.provider_id}
        pairs = alike_pairs = shared_ids = 0
        for key, answer in dict(_answers(registry, again[0], folder, salt, part)).items():
            shared_ids += answer.provider_id in ids
            original_answer = first.get(key)
            if original_answer is not None and answer.sketch and original_answer.sketch:
                pairs += 1
                alike_pairs += _is_alike(answer, original_answer)
    finally:
        remove_folder(folder)
    return AnswerOverlap(pairs, alike_pairs, shared_ids)


@dataclass(frozen=True, slots=True)
class _Answer:
    provider_id: str
    """The id that the provider gave the answer; "" if none."""
    sketch: frozenset[int]
    """The smallest hashes of its words or triples of words (MinHash); empty for a very short answer."""
    is_short: bool


def _answers(
    registry: Registry, entry: ReleaseEntry, folder: Path, salt: bytes, part: float
) -> Iterator[tuple[bytes, _Answer]]:
    path = folder / f"{entry.sha256}.jsonl"
    with registry.open(entry, JOURNAL) as source, create(path) as copy:
        shutil.copyfileobj(source, copy)
    for position in read_records(path):
        record = position.record
        if not isinstance(record, CallRecord):
            continue
        key = orjson.dumps(record.sample.fields())
        if part == 1.0 or zlib.crc32(salt + key) < part * (1 << 32):
            text = " ".join(choice.text or "" for choice in record.completion.choices)
            yield key, _Answer(_provider_id(record), *_sketch(text))
    path.unlink()


def _provider_id(record: CallRecord) -> str:
    body = record.completion.body
    try:
        response = None if body is None else orjson.loads(body.json)
    except orjson.JSONDecodeError:
        return ""
    identity = response.get("id") if isinstance(response, dict) else None
    return identity if isinstance(identity, str) and len(identity) >= _SHORTEST_ID else ""


def _sketch(text: str) -> tuple[frozenset[int], bool]:
    tokens = text.lower().split(None, MAX_WORDS)[:MAX_WORDS]
    is_short = len(tokens) < SHORT_WORDS
    if len(tokens) < MIN_WORDS:
        return frozenset(), is_short
    width = 1 if is_short else 3
    shingles = (" ".join(tokens[start : start + width]) for start in range(len(tokens) - width + 1))
    hashes = {zlib.crc32(shingle.encode("utf-8", "replace")) for shingle in shingles}
    return frozenset(sorted(hashes)[:_SKETCH_HASHES]), is_short


def _is_alike(answer: _Answer, original: _Answer) -> bool:
    """Return whether the overlap of two answers, estimated from their sketches, reaches the threshold."""
    if answer.is_short != original.is_short:
        return False
    smallest = sorted(answer.sketch | original.sketch)[:_SKETCH_HASHES]
    overlap = sum(value in answer.sketch and value in original.sketch for value in smallest) / len(smallest)
    return overlap >= (ALIKE_SHORT if answer.is_short else ALIKE_LONG)
