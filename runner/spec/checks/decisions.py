"""The words of a decision: whether an answer that holds them is read as the verdict that it gives."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

from runner.base.errors import Problem
from runner.documents.dataclass_schema import from_plain
from runner.documents.layered_data import LayeredData
from runner.game.protocols.answer_parser import DecisionFormat, verdict_of
from runner.game.protocols.protocol import Decision
from runner.spec.sound_spec import SoundSpec

_SECTION = "decision_format"


def decision_problems(layered: LayeredData, sound: SoundSpec, *, saved: bool) -> Iterator[Problem]:
    """Verdicts that no answer can give by their text alone; `saved`: the spec was played, and is only read."""
    if saved or any(key.startswith(_SECTION) for key in sound.broken):
        return
    format_ = from_plain(DecisionFormat, sound.section(_SECTION))
    texts = {Decision.ACCEPT: format_.accept, Decision.REJECT: format_.reject}
    found = {verdict: verdict_of(text, format_) for verdict, text in texts.items()}
    unmarked = [texts[verdict] for verdict, read in found.items() if read is Decision.NONE]
    if unmarked:
        head = "".join(a for a, _ in takewhile(lambda both: both[0] == both[1], zip(*texts.values(), strict=False)))
        instead = f", such as {head.strip()!r}" if head.strip() else ""
        yield _problem(
            layered, "marker",
            f"{' and '.join(map(repr, unmarked))} {'do' if len(unmarked) > 1 else 'does'} not hold the marker "
            f"{format_.marker!r}, so that an answer with it announces no decision; take a marker that both texts "
            f"hold{instead}",
        )  # fmt: skip
    mistaken = [verdict for verdict, read in found.items() if read not in (verdict, Decision.NONE)]
    if mistaken or texts[Decision.ACCEPT].lower() == texts[Decision.REJECT].lower():
        one = mistaken[0] if mistaken else Decision.REJECT
        key = one.name.lower()
        yield _problem(
            layered, key,
            f"an answer that holds {texts[one]!r} holds {texts[Decision(1 - one)]!r}, too, so that no verdict is "
            f"{key}; take two texts of which neither is part of the other",
        )  # fmt: skip


def _problem(layered: LayeredData, key: str, message: str) -> Problem:
    at = (_SECTION, key)
    return Problem(layered.place(at), ".".join(at), message)
