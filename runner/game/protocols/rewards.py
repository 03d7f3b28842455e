"""The end of a game and the rewards of its agents (Neural Interactive Proofs, ICLR 2025, section 3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Final

from runner.base.value_class import value_class
from runner.game.protocols.ballot import FIRST_ANSWER, Ballot, answer_position
from runner.game.protocols.protocol import Decision, Protocol

TIE: Final = 1e-9
"""Two rewards that differ by less are equal, because sums of decimal fractions are inexact."""


def reaches(reward: float, threshold: float) -> bool:
    """Return whether a reward is at least `threshold`, apart from a rounding error of `TIE`."""
    return reward >= threshold - TIE


@value_class(frozen=True, slots=True)
class Payoff:
    """The state of a game after a round, or before the first round."""

    decided: bool = False
    """Whether this round's decision counts."""
    terminated: bool = False
    """Whether the game has ended without a decision."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """The reward of each agent in this round; an agent whose reward is unknown is left out."""
    decision: int = Decision.NONE
    """The decision that scores this round: the forced decision if the spec sets one, otherwise the verifier's."""


def forced_decision(protocol: Protocol, label: int | None) -> Decision | None:
    """Return the decision that `force_guess` sets instead of the verifier's own; None if `force_guess` is not set.

    Raises:
        ValueError: `force_guess` is `y`, but the datapoint has no label.
    """
    force = protocol.parameters.force_guess
    if force is None:
        return None
    if force == "y" and label is None:
        raise ValueError("protocol.force_guess: y needs a label for each datapoint; set protocol.force_guess to null")
    return Decision(int(force == "one") if label is None or force != "y" else label)


def _effective_decision(
    protocol: Protocol, decision: int, label: int | None, ballot: Ballot | None, *, counts: bool
) -> int:
    """Return the decision that scores a round, given whether a decision in this round ends the game (`counts`)."""
    if ballot is not None:
        is_forced = protocol.parameters.force_guess == "y" and ballot.right and counts
        return FIRST_ANSWER + min(ballot.right) if is_forced and ballot.right else decision
    forced = forced_decision(protocol, label)
    return Decision(decision) if forced is None or not counts else forced


def is_right(decision: int, label: int | None, ballot: Ballot | None) -> bool | None:
    """Return whether a decision is right; None if this is not known."""
    if ballot is None:
        return None if label is None else decision == label
    return None if ballot.right is None else answer_position(decision) in ballot.right


def payoff(
    protocol: Protocol,
    *,
    round_: int,
    seed: int,
    label: int | None,
    decision: int,
    stances: Mapping[str, int],
    before: Payoff,
    ballot: Ballot | None = None,
) -> Payoff:
    """Return the payoff of a round.

    `decision` is the verifier's, and `stances` has the decision that each prover argues for. `before` is the payoff of
    the previous round. With listed answers, `ballot` has the right ones.

    A decision before round `min_message_rounds - 1` is ignored and earns the no-guess reward. If the last round in
    which an agent can speak has no decision, the game ends, and the verifier gets a penalty. In a game that has already
    ended, the verifier gets no reward for rounds without a decision. If the label is unknown, the verifier's reward for
    a decision is unknown, too, so the verifier and the agents that share its reward are left out of `rewards`.
    """
    p = protocol.parameters
    may_decide = protocol.may_decide(round_, seed)
    counts = may_decide and round_ >= protocol.min_message_rounds - 1
    verdict = _effective_decision(protocol, decision, label, ballot, counts=counts)
    decided = counts and verdict != Decision.NONE
    out_of_rounds = round_ >= protocol.last_speaking_round and not decided
    terminated = before.terminated or out_of_rounds
    rewards = dict.fromkeys(protocol.agent_names, 0.0)
    verifier = protocol.verifier_name
    if decided:
        right = is_right(verdict, label, ballot)
        if right is None:
            del rewards[verifier]
        else:
            rewards[verifier] = p.verifier_reward if right else p.verifier_incorrect_penalty
        for prover in protocol.prover_names:
            if verdict == stances.get(prover):
                rewards[prover] = p.prover_reward
    elif out_of_rounds:
        rewards[verifier] = p.verifier_terminated_penalty
    elif may_decide and not before.decided and not terminated:
        rewards[verifier] = p.verifier_no_guess_reward
    if p.shared_reward:
        rewards = dict.fromkeys(rewards, rewards[verifier]) if verifier in rewards else {}
    return Payoff(decided, terminated, rewards, verdict)
