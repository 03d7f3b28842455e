"""Whether a run that says it plays another one anew has answers of its own, as far as two journals can say.

Whoever samples a model again gets other words for most answers. A copy of a journal has the same ones, and a copy with
small changes nearly the same: so answers are compared by the words, or triples of words, that both have. An answer that
a provider gave one name is one answer, whoever publishes it. Who writes every answer anew without asking the model is
not found out by this; neither is a model told from one that answers alike.
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

JOURNAL = "data/journal.jsonl"
LONG = 8
"""Words: of a shorter answer, such as a verdict alone, two plays say the same by chance."""
MOST_WORDS = 500
"""Of an answer that are looked at."""
MOST_ANSWERS = 20_000
"""Of a run that are looked at, chosen by a lot that its publisher cannot foresee."""
FEWEST = 20
"""Long answers at the same places of both; fewer show nothing."""
SHORT = 40
"""Words: answers that are shorter are compared by their words, and longer ones by triples of words."""
ALIKE_SHORT, ALIKE_LONG = 0.6, 0.3
"""The share that two answers have in common of what they have, from which on they count as one with changes: two
samples of one prompt share most of their common words, and few triples; a word that is changed takes three triples."""
COPIED = 0.25
"""The share of such answers from which on a run cannot be told from a copy."""
_SKETCH = 32
_LEAST_NAME = 8


@dataclass(frozen=True)
class Alike:
    """What two journals have in common."""

    pairs: int
    """Long answers that stand at the same place of both."""
    alike: int
    """Of these, how many are the same, or nearly."""
    named: int
    """Answers of both to which the provider gave the same name."""

    @property
    def is_copy(self) -> bool:
        return self.named > 0 or self.alike > COPIED * self.pairs

    @property
    def is_enough(self) -> bool:
        return self.pairs >= FEWEST

    def __str__(self) -> str:
        if self.named:
            return f"{self.named:,} of its answers are the very ones that the provider gave the first run"
        if not self.is_enough:
            return f"its answers are too short or too few ({self.pairs:,}) to tell a play from a copy"
        return f"{self.alike:,} of {self.pairs:,} answers are the same as those of the first run, or nearly"


def alike(
    registry: Registry, original: tuple[ReleaseEntry, Release], again: tuple[ReleaseEntry, Release], place: Path
) -> Alike:
    """Compare the answers of two published runs, by their journals.

    Raises:
        NipRunError: one has no journal that can be read.
    """
    salt = secrets.token_bytes(8)
    size = max(int(release.facts.get("completions") or 0) for _, release in (original, again))
    part = min(1.0, MOST_ANSWERS / max(size, 1))
    folder = place / secrets.token_hex(8)
    make_folders(folder)
    try:
        first = dict(_answers(registry, original[0], folder, salt, part))
        names = {one.name for one in first.values() if one.name}
        pairs = same = named = 0
        for key, one in dict(_answers(registry, again[0], folder, salt, part)).items():
            named += one.name in names
            other = first.get(key)
            if other is not None and one.sketch and other.sketch:
                pairs += 1
                same += _is_alike(one, other)
    finally:
        remove_folder(folder)
    return Alike(pairs, same, named)


@dataclass(frozen=True, slots=True)
class _Answer:
    name: str
    """That the provider gave it; "" for none."""
    sketch: frozenset[int]
    """Of its words, or triples of words, those whose hashes are least; nothing of a very short one."""
    is_short: bool


def _answers(
    registry: Registry, entry: ReleaseEntry, folder: Path, salt: bytes, part: float
) -> Iterator[tuple[bytes, _Answer]]:
    path = folder / f"{entry.sha256}.jsonl"
    with registry.open(entry, JOURNAL) as source, create(path) as copy:
        shutil.copyfileobj(source, copy)
    for found in read_records(path):
        record = found.record
        if not isinstance(record, CallRecord):
            continue
        key = orjson.dumps(record.sample.fields())
        if part == 1.0 or zlib.crc32(salt + key) < part * (1 << 32):
            text = " ".join(choice.text or "" for choice in record.completion.choices)
            yield key, _Answer(_name(record), *_sketch(text))
    path.unlink()


def _name(record: CallRecord) -> str:
    body = record.completion.body
    try:
        said = None if body is None else orjson.loads(body.json)
    except orjson.JSONDecodeError:
        return ""
    name = said.get("id") if isinstance(said, dict) else None
    return name if isinstance(name, str) and len(name) >= _LEAST_NAME else ""


def _sketch(text: str) -> tuple[frozenset[int], bool]:
    words = text.lower().split(None, MOST_WORDS)[:MOST_WORDS]
    is_short = len(words) < SHORT
    if len(words) < LONG:
        return frozenset(), is_short
    width = 1 if is_short else 3
    parts = (" ".join(words[at : at + width]) for at in range(len(words) - width + 1))
    return frozenset(sorted({zlib.crc32(part.encode("utf-8", "replace")) for part in parts})[:_SKETCH]), is_short


def _is_alike(one: _Answer, other: _Answer) -> bool:
    """Whether two answers have so much in common, by the least of the hashes of what they have."""
    if one.is_short != other.is_short:
        return False
    least = sorted(one.sketch | other.sketch)[:_SKETCH]
    common = sum(value in one.sketch and value in other.sketch for value in least) / len(least)
    return common >= (ALIKE_SHORT if one.is_short else ALIKE_LONG)
