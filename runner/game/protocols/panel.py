"""Panels: several verifiers, called judges here, whose verdicts give the decision of a game.

A judge's first verdict that counts is final: the judge is not asked again, and its answer is a message in the channels
where it speaks, so that the other members of these channels see it. The game ends when every judge has decided, or
after its last round. The panel's rule then gives the decision.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from runner.base.value_class import value_class
from runner.game.protocols.protocol import Decision, Protocol

TIE_MARGIN = 1e-9
"""Mean probabilities that are closer to 0.5 are a tie, because means of decimal fractions are inexact."""


@value_class(frozen=True, slots=True)
class PanelVote:
    """The verdict of one judge."""

    decision: int
    votes: tuple[int, ...] = ()
    """The decision of each answer, if several answers were requested for the verdict."""
    p_accept: float | None = None
    """The judge's probability of accept, if the rule needs it and it is known."""


def panel_decision(protocol: Protocol, votes: Sequence[PanelVote]) -> Decision:
    """Return the decision of a panel. `votes` has the judges' verdicts, the earliest one first.

    Judges without a verdict do not count, except that `unanimous` needs a verdict of every judge. Return
    `Decision.NONE` for a tie, or if no verdict counts.
    """
    panel = protocol.file.panel
    assert panel is not None
    decisions = [Decision(vote.decision) for vote in votes]
    if not decisions:
        return Decision.NONE
    if panel.rule == "sequential":
        return decisions[-1]
    if panel.rule == "unanimous":
        agree = len(votes) == len(protocol.verifier_names) and len(set(decisions)) == 1
        return decisions[0] if agree else Decision.NONE
    if panel.rule == "mean":
        probabilities = [vote.p_accept for vote in votes if vote.p_accept is not None]
        balance = sum(p - 0.5 for p in probabilities) / max(len(probabilities), 1)
    else:
        balance = decisions.count(Decision.ACCEPT) - decisions.count(Decision.REJECT)
    if abs(balance) <= TIE_MARGIN:
        return Decision.NONE
    return Decision.ACCEPT if balance > 0 else Decision.REJECT


def panel_rewards(
    protocol: Protocol,
    *,
    speakers: Collection[str],
    votes: Mapping[str, PanelVote],
    undecided: Collection[str],
    may_decide: bool,
    decision: int | None,
    label: int | None,
    prover_stance: int,
) -> dict[str, float]:
    """Return the rewards of a round. Agents whose rewards need an unknown label are left out.

    A judge is rewarded for its own verdict, and a prover for the panel's decision. `votes` has the verdicts of this
    round, and `undecided` the judges without a verdict after it. `decision` is None unless the game ends.
    """
    p = protocol.parameters
    rewards = dict.fromkeys(protocol.agent_names, 0.0)
    for judge, vote in votes.items():
        rewards[judge] = _reward_for_verdict(protocol, vote.decision, label)
    for judge in undecided:
        if decision is not None:
            rewards[judge] = p.verifier_terminated_penalty
        elif may_decide and judge in speakers:
            rewards[judge] = p.verifier_no_guess_reward
    for prover in protocol.prover_names if decision is not None else ():
        if p.shared_reward:
            rewards[prover] = _reward_for_verdict(protocol, int(decision or 0), label)
        elif decision == protocol.stance(prover, prover_stance):
            rewards[prover] = p.prover_reward
    needs_label = [*votes, *(protocol.prover_names if p.shared_reward and decision in (0, 1) else ())]
    for agent in needs_label if label is None else ():
        del rewards[agent]
    return rewards


def _reward_for_verdict(protocol: Protocol, decision: int, label: int | None) -> float:
    p = protocol.parameters
    if decision == Decision.NONE:
        return p.verifier_terminated_penalty
    return p.verifier_reward if decision == label else p.verifier_incorrect_penalty
