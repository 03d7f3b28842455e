"""Writes a run's games as data for a page's script, in pieces: a row of the list and the full content of each game.

Pieces are gzipped JSON whose `format` is `FORMAT`. SLUG is the run's slug in `about`:

- `SLUG-list-N`: `first` is the place of the piece's first game in the plan's order; `count` is the number of games;
  `columns` has an array for each key of `row_of`, including `x.NAME` for the datapoint's columns, `tokens.AGENT`,
  `retries.AGENT` and `reward.AGENT`.
- `SLUG-games-N`: `first`; `texts`; `games`, in the form that `_Packer` returns. A text is a number (its index in
  `texts`), a string, or a list of numbers and strings to concatenate. A turn has one `chat`, which all attempts sent,
  all `answers` in the order of their arrival, and the calls that `failed`.
- An answer that was not used in the game has the reason in `unusable`. It has `vote` unless the vote is 0. One of
  several candidates for a message has `selected` (whether the game used it) and, if it was scored, `score`.
- `tokens` are the numbers of prompt tokens, answer tokens and cached prompt tokens. Of several answers to a call, only
  the first has the call's tokens and, if the price is known, its cost as `usd`. `costs` has the cost of each agent.
- `about.runs`: `lists` and `pieces` have the place of the first game in each piece.
- `about.compares`: `base` and `other` are ids of runs, and `pairs` is the name of a piece with `columns` of pairs of
  games; see `runner/pages/report/comparison.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import cached_property
from itertools import chain
from typing import Any

from runner.base.text import in_one_line, shortened
from runner.base.value_class import value_class
from runner.game.prompts.chat import ChatMessage
from runner.game.protocols.protocol import Decision, verdict_word
from runner.game.protocols.rounds import Round
from runner.pages.packing import PIECE_BYTES, PieceCompressor, Text, Texts, quotable_texts
from runner.pages.site import StorePiece
from runner.results.folder import RunFolder
from runner.rollouts.plan import Plan
from runner.rollouts.recorded_games import AnsweredRequest
from runner.rollouts.rollout import CONFIDENCE_FIELDS, Call, Rollout
from runner.rollouts.transcript import (
    describe_statements,
    shown_columns,
    shown_decision,
    shown_label,
    shown_stances,
    votes_json,
)
from runner.runs.finished.reconstruction import Reconstructor, played_plan
from runner.runs.finished.rollout_details import RolloutDetails
from runner.runs.finished.sent_prompts import Chats, sent_chats
from runner.spec.datasets.loader import Dataset

FORMAT = 1

MAX_EXCERPT = 120
"""Maximum characters of the excerpt from the datapoint in a game's row."""

MAX_COLUMN = 80
"""Maximum characters of each column of the datapoint in a game's row."""

PIECE_ROWS = 5_000
"""Maximum number of games in a piece of the list."""


@value_class(frozen=True)
class GamePage:
    """A complete game, with the chats that were sent."""

    details: RolloutDetails
    chats: Chats

    @property
    def rollout(self) -> Rollout:
        return self.details.rollout

    @cached_property
    def columns(self) -> dict[str, str]:
        """The columns of the datapoint as texts."""
        return {name: _to_text(value) for name, value in shown_columns(self.rollout).items()}


def games_of(folder: RunFolder, known_dataset: Dataset | None = None, plan: Plan | None = None) -> Iterator[GamePage]:
    """Yield every finished game of a run, in the order of its plan. `plan` is the result of `played_plan`, if known.

    If the rows of the dataset are missing, `known_dataset` has the known facts about the datapoints. The chats are then
    unknown.

    Raises:
        RunError, JournalError, SpecError: a file of the run is missing or damaged.
    """
    plan = plan or played_plan(folder, known_dataset, trusts_manifest=True)
    with closing(Reconstructor(folder, plan)) as reconstructor:
        for rollouts, answered in reconstructor.rollouts_and_requests():
            yield from job_games(reconstructor, rollouts, answered, has_rows=known_dataset is None)


def job_games(
    reconstructor: Reconstructor, rollouts: Sequence[Rollout], answered: Sequence[AnsweredRequest], *, has_rows: bool
) -> Iterator[GamePage]:
    """Yield the games of a reconstructed job; raises as `games_of`.

    Without the rows of the dataset (`has_rows`), the chats are unknown.
    """
    chats: Sequence[Chats] = [{}] * len(rollouts)
    if has_rows:
        chats = sent_chats(reconstructor.plan, rollouts, answered)
    for rollout, rollout_chats in zip(rollouts, chats, strict=True):
        yield GamePage(reconstructor.details(rollout), rollout_chats)


def row_of(game: GamePage) -> dict[str, Any]:
    """Return a game's row in the list."""
    rollout, job = game.rollout, game.rollout.job
    answers = [call for call in rollout.calls if call.is_answer]
    turns = {(call.round, call.agent, call.vote) for call in answers}
    columns = game.columns.values()
    first_text = next((text for text in columns if " " in text.strip()), next(iter(columns), ""))
    return {
        "id": job.rollout_id,
        "datapoint": job.datapoint.id,
        "repeat": job.repeat,
        "label": shown_label(rollout),
        "decision": shown_decision(rollout),
        "correct": rollout.correct,
        "outcome": str(rollout.outcome),
        "rounds": len(rollout.rounds),
        "retries": len({(call.round, call.agent, call.vote, call.attempt) for call in answers}) - len(turns),
        "failed_calls": len(game.details.failures),
        "stance": rollout.stance,
        "swapped": job.swapped,
        "stances_exchanged": job.stances_exchanged,
        "prompt_tokens": sum(call.prompt_tokens for call in rollout.calls),
        "completion_tokens": sum(call.completion_tokens for call in rollout.calls),
        "latency_ms": round(sum(call.latency_ms or 0.0 for call in rollout.calls)),
        "group": job.datapoint.group,
        "confidence": rollout.confidence_stated if rollout.confidence_logprob is None else rollout.confidence_logprob,
        "error": None if rollout.error is None else shortened(in_one_line(rollout.error), MAX_COLUMN),
        "excerpt": shortened(in_one_line(first_text), MAX_EXCERPT),
        **_values_by_agent(game, answers),
        **{f"x.{name}": shortened(in_one_line(value), MAX_COLUMN) for name, value in game.columns.items()},
    }


def _values_by_agent(game: GamePage, answers: Sequence[Call]) -> dict[str, float]:
    """Return the tokens, the retries and the reward of each agent."""
    values: dict[str, float] = {}
    for name in game.details.protocol.agent_names:
        agent_answers = [call for call in answers if _speaker(call) == name]
        attempts = {(call.round, call.agent, call.vote, call.attempt) for call in agent_answers}
        values[f"tokens.{name}"] = sum(call.prompt_tokens + call.completion_tokens for call in agent_answers)
        values[f"retries.{name}"] = len(attempts) - len({(call.round, call.agent, call.vote) for call in agent_answers})
        values[f"reward.{name}"] = game.rollout.rewards.get(name, 0.0)
    return values


def _speaker(call: Call) -> str:
    """Return the agent of a call. A selector, such as `prover.preference`, belongs to the agent of its candidates."""
    return call.agent.partition(".")[0]


def to_columns(rows: Sequence[Mapping[str, object]]) -> dict[str, list[Any]]:
    """Convert rows to columns, whose JSON has a third of the size."""
    names = dict.fromkeys(chain.from_iterable(rows))
    return {name: [row.get(name) for row in rows] for name in names}


class PieceWriter:
    """Writes a list in numbered pieces; items are added one at a time, and full pieces are stored."""

    def __init__(self, name: str, items: str, store_piece: Callable[[str, Any], None]) -> None:
        """Start a list. Its pieces are named `NAME-N`; `items` is their key for the list's items."""
        self._name, self._key, self._store_piece = name, items, store_piece
        self.count = 0
        self._firsts: list[int] = []
        self._start()

    def _start(self) -> None:
        self._first, self._size = self.count, 0
        self._items: list[dict[str, Any]] = []
        self.texts = Texts()
        """The texts of the piece that is not full yet."""

    def add(self, item: dict[str, Any], size: int) -> None:
        """Add an item; without its texts, its JSON has about `size` bytes."""
        self._items.append(item)
        self.count += 1
        self._size += size
        if self.texts.size + self._size >= PIECE_BYTES:
            self._write()
            self._firsts.append(self._first)
            self._start()

    def _write(self) -> None:
        data = {"format": FORMAT, "first": self._first, "texts": self.texts.all, self._key: self._items}
        self._store_piece(f"{self._name}-{len(self._firsts)}", data)

    def flush(self) -> list[int]:
        """Store the piece that is not full yet, and return the place of the first item in each piece."""
        if not self._items:
            return list(self._firsts)
        self._write()
        return [*self._firsts, self._first]


class GamesData:
    """Writes the games of a run as data for its page. Full pieces are stored immediately, to save memory."""

    def __init__(self, slug: str, store_piece: StorePiece) -> None:
        self._slug, self._packing = slug, PieceCompressor(store_piece)
        self._pieces = PieceWriter(f"{slug}-games", "games", self._packing.add)
        self._lists: list[int] = []
        self._rows: list[dict[str, Any]] = []

    @property
    def count(self) -> int:
        return self._pieces.count

    def add(self, game: GamePage, row: dict[str, Any]) -> None:
        self._rows.append(row)
        self._pieces.add(_Packer(game, self._pieces.texts).pack(), 400 + 200 * len(game.rollout.calls))
        if len(self._rows) == PIECE_ROWS:
            self._store_rows()
            self._lists.append(self.count - PIECE_ROWS)
            self._rows = []

    def about(self) -> dict[str, Any]:
        """Store all games that were added so far, and return the places of their data."""
        pieces = self._pieces.flush()
        if self._rows:
            self._store_rows()
        self._packing.end()
        lists = [*self._lists, *([self.count - len(self._rows)] if self._rows else [])]
        return {"count": self.count, "lists": lists, "pieces": pieces}

    def _store_rows(self) -> None:
        first = self.count - len(self._rows)
        data = {"format": FORMAT, "first": first, "count": len(self._rows), "columns": to_columns(self._rows)}
        self._packing.add(f"{self._slug}-list-{len(self._lists)}", data)


class _Packer:
    """Converts a game to JSON data; `texts` are the texts of the piece."""

    def __init__(self, game: GamePage, texts: Texts) -> None:
        self.game, self.texts = game, texts
        rollout = game.rollout
        messages = [message.text for played_round in rollout.rounds for message in played_round.messages]
        # Instructions quote columns. Without these, their parts are mostly known and need not be searched for messages.
        self._quoted = [*quotable_texts(game.columns.values()), *quotable_texts(messages)]

    def pack(self) -> dict[str, Any]:
        details, rollout = self.game.details, self.game.rollout
        job = rollout.job
        return {
            "id": job.rollout_id,
            "columns": {name: self._text(text) for name, text in self.game.columns.items()},
            "stances": shown_stances(details.protocol, rollout),
            "turns": [turn for number, played in details.rounds(None) for turn in self._pack_turns(number, played)],
            "rewards": dict(rollout.rewards),
            "costs": self._costs(),
            "confidence": {name: value for name in CONFIDENCE_FIELDS if (value := getattr(rollout, name)) is not None},
            **({} if rollout.answers is None else {"answers": rollout.answers.columns()}),
            "votes": votes_json(rollout),
            "verdicts": None if rollout.verdicts is None else [verdict.to_json() for verdict in rollout.verdicts],
            "error": rollout.error,
        }

    def _text(self, text: str) -> Text:
        return self.texts.add_quoting(text, self._quoted)

    def _pack_turns(self, number: int, played: Round | None) -> Iterator[dict[str, object]]:
        details, messages = self.game.details, played.messages if played else ()
        states = played is not None and played.stated is not None
        for agent in details.speakers(number, played):
            yield {
                "round": number,
                "agent": agent,
                "cut_off": played is None,
                "chat": [self._chat_message(message) for message in self.game.chats.get((number, agent), ())],
                "answers": self._pack_answers(number, agent, played),
                "failed": [{"error": call.error, "wait": call.wait} for call in details.failed_calls(number, agent)],
                "messages": [{"channel": m.channel, "text": self._text(m.text)} for m in messages if m.agent == agent],
                "decision": self._decision(agent, played),
                "ignored": details.ignores_verdict(number),
                **(
                    {"stated": describe_statements(details.protocol, self.game.rollout.rounds, number)}
                    if states
                    else {}
                ),
            }

    def _chat_message(self, message: ChatMessage) -> dict[str, object]:
        text = self._text(message["content"])
        if "name" in message:
            return {"role": message["role"], "name": message["name"], "text": text}
        return {"role": message["role"], "text": text}

    def _pack_answers(self, number: int, agent: str, played: Round | None) -> list[dict[str, object]]:
        """Return the evaluated answers of an agent in a round: for each vote, all up to the first usable answer."""
        ended, answers = set(), list[dict[str, Any]]()
        selection = None if played is None else played.selections.get(agent)
        for call in self.game.details.turns.get((number, agent), ()):
            if call.is_answer and call.vote not in ended:
                unusable_reason = self.game.details.unusable_reason(call)
                selected = {} if selection is None else {"selected": call.vote == selection.index}
                answers.append({**self._pack_answer(call, unusable_reason), **selected})
                if unusable_reason is None:
                    ended.add(call.vote)
        return answers

    def _pack_answer(self, call: Call, unusable_reason: str | None) -> dict[str, object]:
        fields = {
            "attempt": call.attempt,
            "vote": call.vote or None,
            "text": None if call.raw_message is None else self._text(call.raw_message),
            "reasoning": None if call.reasoning is None else self._text(call.reasoning),
            "finish": call.finish_reason,
            "unusable": unusable_reason,
            "error": call.error,
            "tokens": [call.prompt_tokens, call.completion_tokens, call.cached_tokens],
            "latency_ms": call.latency_ms,
            "usd": self._cost(call),
            "model": call.model,
            "score": call.score,
            "p_accept": None if call.p_accept is None else call.p_accept.value,
            "logprobs": None if call.verdict_logprobs is None else json.loads(call.verdict_logprobs),
        }
        return {name: value for name, value in fields.items() if value is not None}

    def _costs(self) -> dict[str, float | None]:
        """Return the cost of each agent's answers in dollars; None if a price is unknown."""
        costs: dict[str, float | None] = dict.fromkeys(self.game.details.protocol.agent_names, 0.0)
        for call in self.game.rollout.calls:
            if call.is_answer:
                total, usd = costs[_speaker(call)], self._cost(call)
                costs[_speaker(call)] = None if total is None or usd is None else total + usd
        return costs

    def _cost(self, call: Call) -> float | None:
        """Return the cost of a call in dollars, or None if the price is unknown."""
        if not call.paid:
            return 0.0
        price = self.game.details.prices[call.agent]
        return None if price is None else round(price.cost_of(call.usage), 9)

    def _decision(self, agent: str, played: Round | None) -> int | str | None:
        if played is not None and agent in played.panel:
            return int(played.panel[agent].decision)
        protocol = self.game.details.protocol
        if played is None or protocol.file.panel is not None or agent != protocol.verifier_name:
            return None
        if played.decision == Decision.NONE:
            return None
        return verdict_word(played.decision) if self.game.rollout.answers is not None else int(played.decision)


def _to_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
