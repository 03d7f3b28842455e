"""Plays the first rounds of a game without a model, so that `render` can show the prompt of a later round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from runner.game.protocols.answer_verdicts import ANSWER_MARKER
from runner.game.protocols.protocol import Protocol
from runner.game.protocols.rounds import Round, play
from runner.models.connectors import offline_answer
from runner.models.interface import Completion, Request, ResponseHint
from runner.rollouts.agents.agent import Agent
from runner.rollouts.agents.selectors import respond
from runner.rollouts.job import Job


def _undecided(hint: ResponseHint) -> ResponseHint:
    """Return the hint of an answer that decides nothing. A prover may still state the answer that it argues for."""
    if hint.answer_order is not None and hint.answer_marker == ANSWER_MARKER:
        return hint
    return replace(hint, accept=None, reject=None, answer_order=None, answer_marker="")


async def undecided_rounds(protocol: Protocol, agents: Mapping[str, Agent], job: Job, until: int) -> Sequence[Round]:
    """Return the rounds of a game before round `until`. The `dummy` provider answers, and never decides."""

    async def answer_undecided(request: Request) -> Completion:
        return await offline_answer(replace(request, hint=_undecided(request.hint)))

    ballot = job.ballot(protocol)
    game = play(protocol, seed=job.seed, label=job.datapoint.label, prover_stance=job.prover_stance, ballot=ballot)
    turn = next(game)
    while turn.round < until:
        observation = job.observation(turn.round, turn.rounds)
        replies = {name: await respond(agents, protocol, name, observation, answer_undecided) for name in turn.speakers}
        turn = game.send(replies)
    return turn.rounds
