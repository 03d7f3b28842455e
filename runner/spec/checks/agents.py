"""Check the agents of a spec: their names, fine-tuning and model groups, panels, and the texts of verdicts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from os.path import commonprefix
from typing import Any

from runner.base.problems import Problem
from runner.base.text import comma_join, did_you_mean
from runner.documents.dataclass_schema import from_plain
from runner.documents.merged_data import LayeredData
from runner.game.protocols.answer_parser import DecisionFormat, verdict_of
from runner.game.protocols.answer_verdicts import ANSWER_MARKER, display_marker
from runner.game.protocols.ballot import OPEN
from runner.game.protocols.protocol import Decision, Protocol
from runner.game.protocols.statements import CLAIM_MARKER
from runner.spec.sound_spec import SoundSpec


def agent_problems(layered: LayeredData, protocol: Protocol, sound: SoundSpec) -> Iterator[Problem]:
    """Yield a problem for each agent that the protocol lacks or the spec lacks, in `agents` and `fine_tune`."""
    agents = layered.data.get("agents")
    if isinstance(agents, dict):
        yield from _name_problems(agents, layered, protocol)
    yield from _fine_tune_problems(sound.section("fine_tune"), layered, protocol)


def _name_problems(agents: Mapping[str, object], layered: LayeredData, protocol: Protocol) -> Iterator[Problem]:
    missing = [name for name in protocol.agent_names if name not in agents]
    if missing:
        message = f"missing agents of {protocol.name}: {comma_join(missing)}; add agents.{missing[0]}"
        yield layered.problem_at(("agents",), message)
    for name in agents:
        if name not in protocol.agent_names:
            hint = did_you_mean(name, protocol.agent_names) or f"; its agents are {comma_join(protocol.agent_names)}"
            yield layered.problem_at(("agents", name), f"{protocol.name} has no such agent{hint}")


def _fine_tune_problems(fine_tune: Mapping[str, Any], layered: LayeredData, protocol: Protocol) -> Iterator[Problem]:
    for index, name in enumerate(fine_tune.get("agents") or ()):
        if name not in protocol.agent_names:
            hint = did_you_mean(name, protocol.agent_names) or f"; choose from {comma_join(protocol.agent_names)}"
            message = f"{protocol.name} has no agent {name!r}{hint}"
            yield Problem(layered.place(("fine_tune", "agents", index)), "fine_tune.agents", message)
    key = "replace_verifier_guess_with_true_label"
    if fine_tune.get(key) and not fine_tune.get("ensure_last_message_is_assistant", True):
        message = "replacing a guess needs ensure_last_message_is_assistant; set it to true"
        yield Problem(layered.place(("fine_tune", key)), "fine_tune", message)


def group_problems(layered: LayeredData, sound: SoundSpec) -> Iterator[Problem]:
    """Yield a problem for each agent whose model group does not exist."""
    models = layered.data.get("models")
    for name, settings in sound.mappings("agents"):
        for key in ("model", "selector"):
            group = settings.get(key)
            if isinstance(models, dict) and group is not None and group not in models:
                hint = did_you_mean(group, models) or f"; choose one of {comma_join(models)}"
                yield layered.problem_at(("agents", name, key), f"no model group {group!r}{hint}")


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


_SECTION = "decision_format"


def decision_problems(
    layered: LayeredData, protocol: Protocol | None, sound: SoundSpec, *, saved: bool
) -> Iterator[Problem]:
    """Yield a problem for each verdict that no answer can express. The spec of a saved run (`saved`) is not checked."""
    if saved or any(key.startswith(_SECTION) for key in sound.broken):
        return
    format_ = from_plain(DecisionFormat, sound.section(_SECTION))
    if protocol is not None:
        for name in protocol.agent_names:
            yield from _form_problems(protocol, name, format_)
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


_STATED = {"answer": ANSWER_MARKER, "claims": CLAIM_MARKER, "estimates": CLAIM_MARKER}
"""The text that a statement of each kind needs."""


def _form_problems(protocol: Protocol, name: str, format_: DecisionFormat) -> Iterator[Problem]:
    """Yield a problem if the scratchpad of an agent cuts a text that its answers need, or a header is a verdict."""
    agent, key = protocol.agent_spec(name), f"agents.{name}"
    steps = [step for step in protocol.file.cycle if name in step.speak]
    headers = [
        (agent.headers[channel], step.may_decide and agent.role == "verifier")
        for step in steps
        for channel in (step.speak[name] if len(step.speak[name]) > 1 else ())
    ]
    verdicts = (display_marker(format_.marker),) if protocol.lists_answers else (format_.accept, format_.reject)
    needed = [header for header, _ in headers] + [_STATED[step.states] for step in steps if step.states is not None]
    needed += verdicts if agent.role == "verifier" else (ANSWER_MARKER,) if agent.stance == OPEN else ()
    for text in [text for text in needed if agent.scratchpad is not None and agent.scratchpad in text][:1]:
        message = f"{agent.scratchpad!r} is part of {text!r}, which must follow the private notes; choose another text"
        yield Problem(protocol.place(key), f"{key}.scratchpad", message)
    for text in [text for text, decides in headers if decides and format_.marker.lower() in text.lower()][:1]:
        message = f"the header {text!r} contains the marker of a verdict, {format_.marker!r}; choose another header"
        yield Problem(protocol.place(key), f"{key}.headers", message)
