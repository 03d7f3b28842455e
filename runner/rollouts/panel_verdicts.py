"""The verdict and the confidence of each judge of a panel in a finished game, and the confidence of the panel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from runner.game.protocols.protocol import Decision, Protocol
from runner.game.protocols.rounds import Round
from runner.rollouts.agents.agent import Agent
from runner.rollouts.confidence import Confidence, confidence_of
from runner.rollouts.rollout import Call, PanelVerdict, RoundVerdict


def panel_verdicts(agents: Mapping[str, Agent], rounds: Sequence[Round], calls: Sequence[Call]) -> list[PanelVerdict]:
    """Return the verdict of each judge. A judge without a verdict has the game's last round and `Decision.NONE`."""
    verdicts = []
    for judge in (name for name, agent in agents.items() if agent.is_verifier):
        number = next((number for number, round_ in enumerate(rounds) if judge in round_.panel), None)
        if number is None:
            verdict = RoundVerdict(max(len(rounds) - 1, 0), int(Decision.NONE))
        else:
            vote = rounds[number].panel[judge]
            until_verdict = [*rounds[:number], replace(rounds[number], votes=vote.votes)]
            confidence = confidence_of(agents[judge], until_verdict, calls, vote.decision)
            verdict = RoundVerdict(number, vote.decision, vote.votes, None, *confidence)
        verdicts.append(PanelVerdict(judge, verdict))
    return verdicts


def panel_confidence(protocol: Protocol, panel: Sequence[PanelVerdict]) -> Confidence:
    """Return the panel's P(accept): the mean over the judges that decided, or the last one's in `sequential` panels.

    A judge with an unknown probability is omitted, and the note says so.
    """
    from statistics import fmean

    decided = [judge.verdict for judge in panel if judge.verdict.decision != Decision.NONE]
    assert protocol.file.panel is not None
    if protocol.file.panel.rule == "sequential":
        decided = sorted(decided, key=lambda verdict: verdict.round)[-1:]
    notes = dict.fromkeys(verdict.confidence_note for verdict in decided if verdict.confidence_note is not None)
    stated = [verdict.confidence_stated for verdict in decided if verdict.confidence_stated is not None]
    by_logprobs = [verdict.confidence_logprob for verdict in decided if verdict.confidence_logprob is not None]
    return Confidence(
        fmean(stated) if stated else None, fmean(by_logprobs) if by_logprobs else None, "; ".join(notes) or None
    )
