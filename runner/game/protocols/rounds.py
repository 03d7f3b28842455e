"""A game as a generator without I/O. It yields the agents that must speak, and receives their replies.

The generator uses no model, prompt or clock, so tests can play it by hand, and one event loop can play many games.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from runner.base.hashing import derived_seed
from runner.base.value_class import value_class
from runner.game.protocols.answer_verdicts import stated_answer
from runner.game.protocols.ballot import FIRST_ANSWER, Ballot
from runner.game.protocols.panel import PanelVote, panel_decision, panel_rewards
from runner.game.protocols.protocol import Decision, Protocol
from runner.game.protocols.rewards import Payoff, forced_decision, payoff
from runner.game.protocols.statements import GameSubject, StatedParts, Statement


@value_class(frozen=True, slots=True)
class MessageCounts:
    """The numbers of words and quotes in a message; None if the protocol has no rule that counts them."""

    words: int | None = None
    removed_words: int | None = None
    """The number of words over the limit, which were removed."""
    verified_quotes: int | None = None
    unverified_quotes: int | None = None
    """The number of quotes that others see as unverified, including those in `over_limit_quotes`."""
    over_limit_quotes: int | None = None
    """The number of quotes that the source has, but that exceed a limit of quoted words."""
    quoted_words: int | None = None
    """The number of words in verified quotes."""


@value_class(frozen=True, slots=True)
class Message:
    """One message in one channel, as the other members of the channel see it."""

    channel: str
    agent: str
    text: str
    counts: MessageCounts | None = None


@value_class(frozen=True, slots=True)
class Selection:
    """The result of a selector: the index of the selected candidate, and each candidate's score, if it has one."""

    index: int
    scores: tuple[float | None, ...] = ()
    failed: bool = False
    """Whether no judgment was usable, so that the first candidate was delivered instead."""


@value_class(frozen=True, slots=True)
class Reply:
    """An agent's reply in a round. A decision has no `messages` (None), except that of a judge of a panel.

    `retry_count` and `token_limit` are defined as in the original implementation: the number of unusable answers, and
    whether the accepted answer ended at the token limit. If all attempts failed, the last answer counts as a retry and
    `token_limit` is false. `calls` and `cut` have the actual number of calls and whether the last answer was cut.
    """

    raw: str
    messages: Mapping[str, str] | None
    decision: int = Decision.NONE
    retry_count: int = 0
    token_limit: bool = False
    calls: int = 1
    cut: bool = False
    votes: tuple[int, ...] = ()
    """The decision of each answer, if several answers were requested for the verdict."""
    counts: Mapping[str, MessageCounts] = field(default_factory=dict)
    """The counts of each channel's message, if the protocol has rules that count words or quotes."""
    score: float | None = None
    """The score of a candidate or the index of the best candidate, if this is the reply of a selector."""
    selection: Selection | None = None
    """The selection of this reply from several candidates."""
    p_accept: float | None = None
    """The probability of accept that a judge gives with its verdict, if the panel's rule needs it."""
    statement: Statement | None = None
    """The answer or the sub-claims that the message states, if the step of the protocol requires them."""
    estimates: tuple[float, ...] = ()
    """The probability of each sub-claim, if the step requires them."""


@value_class(frozen=True, slots=True)
class Round:
    """A played round: the raw texts of its speakers, the messages, the decision and the rewards; see `Reply`."""

    raw: Mapping[str, str] = field(default_factory=dict)
    messages: Sequence[Message] = ()
    decision: int = Decision.NONE
    rewards: Mapping[str, float] = field(default_factory=dict)
    retry_counts: Mapping[str, int] = field(default_factory=dict)
    token_limits: Mapping[str, bool] = field(default_factory=dict)
    calls: Mapping[str, int] = field(default_factory=dict)
    cut: Mapping[str, bool] = field(default_factory=dict)
    votes: tuple[int, ...] = ()
    asked: frozenset[str] | None = None
    """The agents whose models were called, if the texts of others come from another run; None if all were called."""
    panel: Mapping[str, PanelVote] = field(default_factory=dict)
    """The verdicts that judges of a panel gave in this round."""

    selections: Mapping[str, Selection] = field(default_factory=dict)
    """The selections from several candidates, by agent."""
    stated: StatedParts | None = None
    """The statements of the messages and the picked sub-claim, if the step has rules for them."""

    def counts(self, agent: str) -> bool:
        """Return whether the agent's calls and retries were made in this run."""
        return self.asked is None or agent in self.asked


@value_class(frozen=True, slots=True)
class PendingTurn:
    """The agents that must speak now, each with its channels, and the earlier rounds."""

    round: int
    speakers: Mapping[str, tuple[str, ...]]
    rounds: Sequence[Round]


@dataclass(frozen=True, slots=True)
class FinishedGame:
    """A finished game. Its `decision` is `Decision.NONE` if the last round ended without one."""

    rounds: Sequence[Round]
    decision: int
    terminated: bool

    @property
    def decided(self) -> bool:
        return self.decision != Decision.NONE


def play(
    protocol: Protocol,
    *,
    seed: int,
    label: int | None,
    prover_stance: int,
    rounds: Sequence[Round] = (),
    ballot: Ballot | None = None,
) -> Generator[PendingTurn, Mapping[str, Reply], FinishedGame]:
    """Play a game, or continue a game after `rounds`.

    The label, or the right answers of the ballot, are used only for rewards and for `force_guess: y`. No speaker sees
    them. The label of an answer or sub-claim that a prover stated replaces that of the datapoint.
    """
    if protocol.file.panel is not None:
        return (yield from _play_panel(protocol, seed, label, prover_stance, list(rounds)))
    played, pay = list(rounds), Payoff()
    stances = protocol.prover_stances(prover_stance)
    for round_ in range(len(played), protocol.last_speaking_round + 1):
        speakers = protocol.speakers(round_, seed)
        replies = (yield PendingTurn(round_, speakers, played)) if speakers else {}
        stated = stated_parts(protocol, round_, seed, played, replies)
        verifier = replies.get(protocol.verifier_name)
        if ballot is not None:
            texts = [*(past.raw for past in played), {agent: reply.raw for agent, reply in replies.items()}]
            stances = argued_decisions(protocol, ballot, texts)
        pay = payoff(
            protocol,
            round_=round_,
            seed=seed,
            label=game_label(protocol, played, label),
            decision=Decision.NONE if verifier is None else verifier.decision,
            stances=stances,
            before=pay,
            ballot=ballot,
        )
        votes = () if verifier is None else verifier.votes
        played.append(_round(replies, pay.decision, pay.rewards, votes=votes, stated=stated))
        if pay.decided:
            return FinishedGame(played, pay.decision, terminated=False)
    return FinishedGame(played, Decision.NONE, terminated=True)


def _play_panel(
    protocol: Protocol, seed: int, label: int | None, prover_stance: int, played: list[Round]
) -> Generator[PendingTurn, Mapping[str, Reply], FinishedGame]:
    """Play a game with a panel, or continue it after the rounds in `played`; see `runner.game.protocols.panel`."""
    votes = {judge: vote for round_ in played for judge, vote in round_.panel.items()}
    for round_ in range(len(played), protocol.last_speaking_round + 1):
        speakers = {name: channels for name, channels in protocol.speakers(round_, seed).items() if name not in votes}
        replies = (yield PendingTurn(round_, speakers, played)) if speakers else {}
        stated = stated_parts(protocol, round_, seed, played, replies)
        current_label = game_label(protocol, played, label)
        new_votes = _new_votes(protocol, round_, seed, replies, current_label)
        votes |= new_votes
        undecided = [name for name in protocol.verifier_names if name not in votes]
        has_ended = not undecided or round_ == protocol.last_speaking_round
        decision = panel_decision(protocol, list(votes.values())) if has_ended else Decision.NONE
        rewards = panel_rewards(
            protocol, speakers=speakers, votes=new_votes, undecided=undecided,
            may_decide=protocol.step(round_).may_decide, decision=decision if has_ended else None,
            label=current_label,
            prover_stance=prover_stance,
        )  # fmt: skip
        visible_replies = {name: _without_ignored_verdict(reply, name in new_votes) for name, reply in replies.items()}
        played.append(_round(visible_replies, decision, rewards, panel=new_votes, stated=stated))
        if has_ended:
            return FinishedGame(played, decision, terminated=decision == Decision.NONE)
    return FinishedGame(played, Decision.NONE, terminated=True)


def game_label(protocol: Protocol, rounds: Sequence[Round], label: int | None) -> int | None:
    """Return the label of what a verdict after these rounds is about: a stated answer, a sub-claim, or the datapoint.

    `label` is the datapoint's label.
    """
    stated = find_subject(protocol, rounds).label if protocol.has_statements else None
    return label if stated is None else stated


def _new_votes(
    protocol: Protocol, round_: int, seed: int, replies: Mapping[str, Reply], label: int | None
) -> dict[str, PanelVote]:
    """Return the verdicts in a round that count, in the order of the file."""
    forced, votes = forced_decision(protocol, label), {}
    for judge in protocol.verifier_names:
        reply = replies.get(judge)
        if reply is None or round_ < protocol.min_message_rounds - 1 or not protocol.may_decide(round_, seed, judge):
            continue
        if forced is not None:
            votes[judge] = PanelVote(int(forced), reply.votes, float(forced))
        elif reply.decision != Decision.NONE:
            votes[judge] = PanelVote(int(reply.decision), reply.votes, reply.p_accept)
    return votes


def _without_ignored_verdict(reply: Reply, counts: bool) -> Reply:
    """Return a reply without messages if it is a verdict that does not count, since it is too early."""
    return reply if counts or reply.decision == Decision.NONE else replace(reply, messages=None)


def find_subject(protocol: Protocol, rounds: Sequence[Round]) -> GameSubject:
    """Return what a game is about after these rounds."""
    subject = GameSubject()
    for number, played in enumerate(rounds):
        stated = played.stated
        if stated is None:
            continue
        if stated.statement is not None and protocol.step(number).states == "answer":
            subject = subject._replace(text=stated.statement.texts[0], label=_label(stated.statement, 0))
        elif stated.statement is not None:
            subject = subject._replace(claims=stated.statement)
        if stated.picked is not None and subject.claims is not None:
            text, label = subject.claims.texts[stated.picked], _label(subject.claims, stated.picked)
            subject = GameSubject(text, label, subject.depth + 1)
    return subject


def _label(statement: Statement, index: int) -> int | None:
    return statement.labels[index] if statement.labels else None


def stated_parts(
    protocol: Protocol, round_: int, seed: int, rounds: Sequence[Round], replies: Mapping[str, Reply]
) -> StatedParts | None:
    """Return what the replies of a round state, after `rounds`, and the pick that follows; None if there is neither."""
    step = protocol.step(round_)
    if step.states is None and not step.pick_claim:
        return None
    reply = next((reply for reply in replies.values() if reply.statement or reply.estimates), None)
    statement, estimates = (None, ()) if reply is None else (reply.statement, reply.estimates)
    picked = None
    if step.pick_claim:
        claims = statement or find_subject(protocol, rounds).claims
        assert claims is not None, "the loader checks that sub-claims are stated before one is picked"
        picked = derived_seed("picked_claim", seed, round_) % len(claims.texts)
    return StatedParts(statement, estimates, picked)


def argued_decisions(protocol: Protocol, ballot: Ballot, texts: Sequence[Mapping[str, str]]) -> dict[str, int]:
    """Return the decision that each prover argues for. `texts` has the raw texts of each round by agent.

    A prover that chooses its answer states it in its first text. Provers that did not state one are left out.
    """
    positions: dict[str, int | None] = dict(ballot.assigned)
    for agent in protocol.prover_names:
        if agent not in positions:
            first = next((raw[agent] for raw in texts if agent in raw), "")
            positions[agent] = stated_answer(first, len(ballot.texts))
    return {agent: FIRST_ANSWER + position for agent, position in positions.items() if position is not None}


def _round(
    replies: Mapping[str, Reply],
    decision: int,
    rewards: Mapping[str, float],
    *,
    votes: tuple[int, ...] = (),
    panel: Mapping[str, PanelVote] | None = None,
    stated: StatedParts | None = None,
) -> Round:
    raw: dict[str, str] = {}
    messages: list[Message] = []
    retry_counts: dict[str, int] = {}
    token_limits: dict[str, bool] = {}
    calls: dict[str, int] = {}
    cut: dict[str, bool] = {}
    for agent, reply in replies.items():
        raw[agent], calls[agent], cut[agent] = reply.raw, reply.calls, reply.cut
        retry_counts[agent], token_limits[agent] = reply.retry_count, reply.token_limit
        messages += [
            Message(channel, agent, text, reply.counts.get(channel)) for channel, text in (reply.messages or {}).items()
        ]
    selections = {agent: reply.selection for agent, reply in replies.items() if reply.selection is not None}
    return Round(
        raw, messages, decision, rewards, retry_counts=retry_counts, token_limits=token_limits, calls=calls, cut=cut,
        votes=votes, panel=panel or {}, selections=selections, stated=stated,
    )  # fmt: skip


def episode_rewards(protocol: Protocol, rounds: Sequence[Round], *, is_labelled: bool = True) -> dict[str, float]:
    """Return the sum of each agent's rewards. Without a label, agents whose rewards need one are left out."""
    agents = [name for name in protocol.agent_names if is_labelled or all(name in played.rewards for played in rounds)]
    return {agent: sum(played.rewards.get(agent, 0.0) for played in rounds) for agent in agents}
