"""Check the texts of a spec's `decision_format`: the parser must recognize each verdict by its text."""

from __future__ import annotations

from collections.abc import Iterator
from os.path import commonprefix

from runner.base.problems import Problem
from runner.documents.dataclass_schema import from_plain
from runner.documents.merged_data import LayeredData
from runner.game.protocols.answer_parser import DecisionFormat, verdict_of
from runner.game.protocols.protocol import Decision
from runner.spec.sound_spec import SoundSpec

_SECTION = "decision_format"


def decision_problems(layered: LayeredData, sound: SoundSpec, *, saved: bool) -> Iterator[Problem]:
    """Yield a problem for each verdict that no answer can express. The spec of a saved run (`saved`) is not checked."""
    if saved or any(key.startswith(_SECTION) for key in sound.broken):
        return
    format_ = from_plain(DecisionFormat, sound.section(_SECTION))
    texts = {Decision.ACCEPT: format_.accept, Decision.REJECT: format_.reject}
    parsed = {verdict: verdict_of(text, format_) for verdict, text in texts.items()}
    unmarked = [texts[verdict] for verdict, parsed_verdict in parsed.items() if parsed_verdict is Decision.NONE]
    if unmarked:
        common_start = commonprefix(list(texts.values())).strip()  # noqa: RUF071 - texts, not paths
        example = f", such as {common_start!r}" if common_start else ""
        yield layered.problem_at(
            (_SECTION, "marker"),
            f"{' and '.join(map(repr, unmarked))} {'do' if len(unmarked) > 1 else 'does'} not contain the marker "
            f"{format_.marker!r}, so an answer with it would not be a decision; choose a marker that both texts "
            f"contain{example}",
        )  # fmt: skip
    mistaken = [verdict for verdict, parsed_verdict in parsed.items() if parsed_verdict not in (verdict, Decision.NONE)]
    if mistaken or texts[Decision.ACCEPT].lower() == texts[Decision.REJECT].lower():
        verdict = mistaken[0] if mistaken else Decision.REJECT
        key = verdict.name.lower()
        yield layered.problem_at(
            (_SECTION, key),
            f"an answer that contains {texts[verdict]!r} also contains {texts[Decision(1 - verdict)]!r}, so no verdict "
            f"would be {key}; choose two texts such that neither is part of the other",
        )  # fmt: skip
