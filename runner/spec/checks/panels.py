"""Check that the rest of a spec works with a protocol whose verifiers decide as a panel."""

from __future__ import annotations

from collections.abc import Iterator

from runner.base.problems import Problem
from runner.documents.merged_data import LayeredData
from runner.game.protocols.protocol import Protocol
from runner.spec.sound_spec import SoundSpec


def panel_problems(layered: LayeredData, protocol: Protocol, sound: SoundSpec) -> Iterator[Problem]:
    """Yield a problem for each setting that a panel needs or does not allow."""
    panel = protocol.file.panel
    if panel is None:
        return
    if panel.rule == "mean" and sound.section("verdict").get("confidence") is None:
        message = (
            f"the panel of {protocol.name} decides by the mean of its judges' probabilities, which are not recorded; "
            "set verdict.confidence=stated"
        )
        yield layered.problem_at(("verdict", "confidence"), message)
    if layered.data.get("rejudge"):
        message = (
            f"{protocol.name} has a panel of {len(protocol.verifier_names)} judges, and only debates with a single "
            "verifier can be judged again; remove rejudge, and play the games with other judges"
        )
        yield layered.problem_at(("rejudge",), message)
