"""Detects whether a run that claims to reproduce another one copied its answers, by comparing the two journals.

`runner.server.boards.verification_tiers` does not count copies as reproductions. If a model answers a prompt again, it
mostly uses other words. A copied journal (the record of a run's answers) has the same words, and a slightly changed
copy has nearly the same words. Therefore answers are compared by the words, or triples of words, that they share. Two
answers with the same id from the provider are the same answer. The comparison does not detect answers that somebody
rewrote completely, or tell apart two models that give similar answers.
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
"""Minimum number of words of an answer to compare. Shorter answers (such as a verdict) are often equal by chance."""
MAX_WORDS = 500
"""Maximum number of words to compare of each answer."""
MAX_ANSWERS = 20_000
"""Maximum number of answers to compare, chosen at random, so that a publisher cannot know which ones."""
MIN_PAIRS = 20
"""Minimum number of pairs of answers. Fewer pairs cannot distinguish a copy from a reproduction."""
SHORT_WORDS = 40
"""Answers with fewer words are compared word by word, longer answers by triples of words."""
MIN_OVERLAP_SHORT = 0.6
"""Minimum overlap (Jaccard index) of two short answers that count as nearly equal."""
MIN_OVERLAP_LONG = 0.3
"""The same minimum for two long answers. It is smaller, because independent answers to one prompt share few triples of
words, and because a copy loses three triples with each changed word."""
COPY_SHARE = 0.25
"""A run counts as a copy if a larger share of its answers than this is nearly equal to the original answers."""
_SKETCH_HASHES = 32
"""Number of hashes in the sketch of an answer; see `_Answer.sketch`."""
_MIN_ID_LENGTH = 8
"""Minimum length of a provider's id; shorter ids, such as counters, may be equal by chance."""


@dataclass(frozen=True)
class AnswerOverlap:
    """The similarity of two journals."""

    pairs: int
    """Number of pairs of answers of at least `MIN_WORDS` words, each pair for the same call of both runs."""
    alike: int
    """Number of pairs whose answers are equal or nearly equal."""
    shared_ids: int
    """Number of answers whose provider id is in both journals."""

    @property
    def is_copy(self) -> bool:
        return self.shared_ids > 0 or self.alike > COPY_SHARE * self.pairs

    @property
    def has_enough_pairs(self) -> bool:
        return self.pairs >= MIN_PAIRS

    def __str__(self) -> str:
        if self.shared_ids:
            return f"{self.shared_ids:,} answers have the same provider ids as answers of the original run"
        if not self.has_enough_pairs:
            return f"the answers are too short or too few ({self.pairs:,}) to distinguish new answers from copied ones"
        return f"{self.alike:,} of {self.pairs:,} answers are equal or nearly equal to those of the original run"


def compare_answers(
    registry: Registry, original: PublishedRun, reproduction: PublishedRun, work_folder: Path
) -> AnswerOverlap:
    """Compare the answers in the journals of two published runs.

    Raises:
        NipRunError: a run has no readable journal.
    """
    salt = secrets.token_bytes(8)
    answer_count = max(int(release.facts.get("completions") or 0) for _, release in (original, reproduction))
    share = min(1.0, MAX_ANSWERS / max(answer_count, 1))
    folder = work_folder / secrets.token_hex(8)
    make_folders(folder)
    try:
        original_answers = dict(_sample_answers(registry, original[0], folder, salt, share))
        ids = {answer.provider_id for answer in original_answers.values() if answer.provider_id}
        pairs = alike_pairs = shared_ids = 0
        for key, answer in dict(_sample_answers(registry, reproduction[0], folder, salt, share)).items():
            shared_ids += answer.provider_id in ids
            original_answer = original_answers.get(key)
            if original_answer is not None and answer.sketch and original_answer.sketch:
                pairs += 1
                alike_pairs += _is_alike(answer, original_answer)
    finally:
        remove_folder(folder)
    return AnswerOverlap(pairs, alike_pairs, shared_ids)


@dataclass(frozen=True, slots=True)
class _Answer:
    provider_id: str
    """The id that the provider gave the answer, or ""."""
    sketch: frozenset[int]
    """The smallest hashes of the answer's words or triples of words (MinHash); empty for a very short answer."""
    is_short: bool


def _sample_answers(
    registry: Registry, entry: ReleaseEntry, folder: Path, salt: bytes, share: float
) -> Iterator[tuple[bytes, _Answer]]:
    """Yield a random share of the answers in a run's journal, each with the key of its call.

    A call is a request to a model. Runs of the same games have the same keys, and `salt` decides which keys are
    selected, so both runs' answers to the same calls are selected.
    """
    path = folder / f"{entry.sha256}.jsonl"
    with registry.open(entry, JOURNAL) as source, create(path) as copy:
        shutil.copyfileobj(source, copy)
    for located_record in read_records(path):
        record = located_record.record
        if not isinstance(record, CallRecord):
            continue
        key = orjson.dumps(record.sample.fields())
        if share == 1.0 or zlib.crc32(salt + key) < share * (1 << 32):
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
    return identity if isinstance(identity, str) and len(identity) >= _MIN_ID_LENGTH else ""


def _sketch(text: str) -> tuple[frozenset[int], bool]:
    """Return the sketch of an answer and whether it is short."""
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
    return overlap >= (MIN_OVERLAP_SHORT if answer.is_short else MIN_OVERLAP_LONG)
