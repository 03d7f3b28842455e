"""A run's games as a page's script reads them: a row of the list for each, and each whole, in pieces.

Pieces are gzip of JSON, whose `format` is `FORMAT`; SLUG is the run's in `about`:

- `SLUG-list-N`: `first`, the place of its first game in the order of the plan; `count`; `columns`, an array for each
  name in `row_of`, besides `x.NAME` of a datapoint's columns and `tokens.AGENT`, `retries.AGENT`, `reward.AGENT`.
- `SLUG-games-N`: `first`; `texts`; `games`, each as `_Packer` makes it. A text is a number (its place in `texts`), a
  string, or a list of both that are joined. A turn has the one `chat` that all its attempts were sent, all `answers` in
  the order in which they came (`unusable` says why one was not played; `vote` is left out where it is 0; `tokens` are
  of the prompt, of the answer, and of the prompt those that the server had cached; a call's tokens stand with the first
  of its answers, with `usd`, what it cost, where a price is known), and the calls that `failed`.
- `about.runs`: of each run `lists` and `pieces`, the place of the first game in each piece.
- `about.compares`: `base` and `other`, ids of runs, and `pairs`, the name of a piece with `columns` of pairs of games;
  see `runner/pages/report/comparison.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from runner.base.text import in_one_line, shortened
from runner.game.prompts.chat import ChatMessage
from runner.game.protocols.protocol import Decision
from runner.pages.packing import PIECE_BYTES, Packing, Text, Texts, by_length
from runner.pages.site import Keep
from runner.results.folder import RunFolder
from runner.rollouts.recorded_games import AnsweredRequest
from runner.rollouts.rollout import CONFIDENCE, Call, Rollout
from runner.runs.finished.reconstruction import Reconstructor, played_plan
from runner.runs.finished.rollout_details import RolloutDetails
from runner.runs.finished.sent_prompts import Chats, sent_chats
from runner.spec.datasets.loader import Dataset

FORMAT = 1

EXCERPT = 120
"""Characters of a game's first column that its row has."""

COLUMN = 80
"""Characters of each other column there."""

ROWS = 5_000
"""Games in one piece of the list."""


@dataclass(frozen=True)
class GamePage:
    """One game, whole."""

    told: RolloutDetails
    chats: Chats

    @property
    def rollout(self) -> Rollout:
        return self.told.rollout


def games_of(folder: RunFolder, given: Dataset | None = None) -> Iterator[GamePage]:
    """Every finished game of a run, in the order of its plan; of one that is still playing, those so far.

    `given` is what is known of its datapoints, where their rows are not there: what was sent is not known then.

    Raises:
        RunError, JournalError, SpecError: a file of the run is gone or damaged.
    """
    plan = played_plan(folder, given)
    with closing(Reconstructor(folder, plan)) as reconstructor:
        for rollouts, answered in reconstructor.with_answered():
            yield from job_games(reconstructor, rollouts, answered, has_rows=given is None)


def job_games(
    reconstructor: Reconstructor, rollouts: Sequence[Rollout], answered: Sequence[AnsweredRequest], *, has_rows: bool
) -> Iterator[GamePage]:
    """The games of a job that was played again, with all that its run's folder has of them; raises as `games_of`.

    What was sent is not known where the rows of the dataset are not there.
    """
    if not has_rows:
        yield from (GamePage(_told(reconstructor, rollout), {}) for rollout in rollouts)
        return
    for rollout, chats in zip(rollouts, sent_chats(reconstructor.plan, rollouts, answered), strict=True):
        yield GamePage(_told(reconstructor, rollout), chats)


def _told(reconstructor: Reconstructor, rollout: Rollout) -> RolloutDetails:
    plan, job = reconstructor.plan, rollout.job
    return RolloutDetails(
        rollout,
        plan.spec.protocol,
        plan.agents(swapped=job.swapped),
        reconstructor.failures(job),
        plan.spec.price_basis,
    )


def row_of(game: GamePage) -> dict[str, Any]:
    """A game's row of the list."""
    rollout, job = game.rollout, game.rollout.job
    answers = [call for call in rollout.calls if call.is_answer]
    turns = {(call.round, call.agent, call.vote) for call in answers}
    columns = {name: _plain(value) for name, value in job.datapoint.columns.items()}
    begins = next((text for text in columns.values() if " " in text.strip()), next(iter(columns.values()), ""))
    return {
        "id": job.rollout_id,
        "datapoint": job.datapoint.id,
        "repeat": job.repeat,
        "label": job.datapoint.label,
        "decision": int(rollout.decision) if rollout.decision != Decision.NONE else None,
        "correct": rollout.correct,
        "outcome": str(rollout.outcome),
        "rounds": len(rollout.rounds),
        "retries": len({(call.round, call.agent, call.vote, call.attempt) for call in answers}) - len(turns),
        "failed_calls": len(game.told.failures),
        "stance": rollout.stance,
        "swapped": job.swapped,
        "stances_exchanged": job.stances_exchanged,
        "prompt_tokens": sum(call.prompt_tokens for call in rollout.calls),
        "completion_tokens": sum(call.completion_tokens for call in rollout.calls),
        "latency_ms": round(sum(call.latency_ms or 0.0 for call in rollout.calls)),
        "group": job.datapoint.group,
        "confidence": rollout.confidence_stated if rollout.confidence_logprob is None else rollout.confidence_logprob,
        "error": None if rollout.error is None else shortened(in_one_line(rollout.error), COLUMN),
        "excerpt": shortened(in_one_line(begins), EXCERPT),
        **_by_agent(game, answers),
        **{f"x.{name}": shortened(in_one_line(value), COLUMN) for name, value in columns.items()},
    }


def _by_agent(game: GamePage, answers: Sequence[Call]) -> dict[str, float]:
    """Of each agent its tokens, how often it was asked again, and its reward."""
    found: dict[str, float] = {}
    for name in game.told.protocol.agent_names:
        own = [call for call in answers if call.agent == name]
        attempts = {(call.round, call.vote, call.attempt) for call in own}
        found[f"tokens.{name}"] = sum(call.prompt_tokens + call.completion_tokens for call in own)
        found[f"retries.{name}"] = len(attempts) - len({(call.round, call.vote) for call in own})
        found[f"reward.{name}"] = game.rollout.rewards.get(name, 0.0)
    return found


def by_column(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Rows as columns, which are a third of their size."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


class PieceWriter:
    """Numbered pieces of a list whose items come one at a time; a piece is kept once it is full."""

    def __init__(self, name: str, items: str, keep: Callable[[str, Any], None]) -> None:
        """`items` is the key of the items in a piece, and `NAME-N` the name of a piece."""
        self._name, self._key, self._keep = name, items, keep
        self.count = 0
        self._firsts: list[int] = []
        self._start()

    def _start(self) -> None:
        self._first, self._size = self.count, 0
        self._items: list[dict[str, Any]] = []
        self.texts = Texts()
        """The texts of the piece that is not full yet."""

    def add(self, item: dict[str, Any], size: int) -> None:
        """Add an item, whose JSON has about `size` bytes besides its texts."""
        self._items.append(item)
        self.count += 1
        self._size += size
        if self.texts.size + self._size >= PIECE_BYTES:
            self._write()
            self._firsts.append(self._first)
            self._start()

    def _write(self) -> None:
        data = {"format": FORMAT, "first": self._first, "texts": self.texts.all, self._key: self._items}
        self._keep(f"{self._name}-{len(self._firsts)}", data)

    def flush(self) -> list[int]:
        """Keep the piece that is not full yet; return the place of the first item in each piece."""
        if not self._items:
            return list(self._firsts)
        self._write()
        return [*self._firsts, self._first]


class GamesData:
    """The games of one run as its page reads them: full pieces are kept at once, so one piece bounds the memory."""

    def __init__(self, slug: str, keep: Keep) -> None:
        self._slug, self._packing = slug, Packing(keep)
        self._pieces = PieceWriter(f"{slug}-games", "games", self._packing.add)
        self._lists: list[int] = []
        self._rows: list[dict[str, Any]] = []

    @property
    def count(self) -> int:
        return self._pieces.count

    def add(self, game: GamePage, row: dict[str, Any]) -> None:
        self._rows.append(row)
        self._pieces.add(_Packer(game, self._pieces.texts).packed(), 400 + 200 * len(game.rollout.calls))
        if len(self._rows) == ROWS:
            self._keep_rows()
            self._lists.append(self.count - ROWS)
            self._rows = []

    def about(self) -> dict[str, Any]:
        """Keep all games that were added so far, and return where they are."""
        pieces = self._pieces.flush()
        if self._rows:
            self._keep_rows()
        self._packing.end()
        lists = [*self._lists, *([self.count - len(self._rows)] if self._rows else [])]
        return {"count": self.count, "lists": lists, "pieces": pieces}

    def _keep_rows(self) -> None:
        first = self.count - len(self._rows)
        data = {"format": FORMAT, "first": first, "count": len(self._rows), "columns": by_column(self._rows)}
        self._packing.add(f"{self._slug}-list-{len(self._lists)}", data)


class _Packer:
    """One game on its way into a piece."""

    def __init__(self, game: GamePage, texts: Texts) -> None:
        self.game, self.texts = game, texts
        rollout = game.rollout
        columns = [_plain(value) for value in rollout.job.datapoint.columns.values()]
        messages = [message.text for played in rollout.rounds for message in played.messages]
        self._quoted = by_length([*messages, *columns])

    def packed(self) -> dict[str, Any]:
        told, rollout = self.game.told, self.game.rollout
        job = rollout.job
        return {
            "id": job.rollout_id,
            "columns": {name: self._text(_plain(value)) for name, value in job.datapoint.columns.items()},
            "turns": [turn for number, _ in told.rounds(None) for turn in self._turns(number)],
            "rewards": dict(rollout.rewards),
            "confidence": {name: getattr(rollout, name) for name in CONFIDENCE if getattr(rollout, name) is not None},
            "votes": None if rollout.votes is None else list(rollout.votes),
            "verdicts": None if rollout.verdicts is None else [one.to_json() for one in rollout.verdicts],
            "error": rollout.error,
        }

    def _text(self, text: str) -> Text:
        return self.texts.quoting(text, self._quoted)

    def _turns(self, number: int) -> Iterator[dict[str, Any]]:
        told = self.game.told
        played = dict(told.rounds(number))[number]
        for agent in told.speakers(number, played):
            messages = [one for one in ([] if played is None else played.messages) if one.agent == agent]
            yield {
                "round": number,
                "agent": agent,
                "cut_off": played is None,
                "chat": [self._said(said) for said in self.game.chats.get((number, agent), ())],
                "answers": [self._answer(call) for call in self._played(number, agent)],
                "failed": [{"error": one.error, "wait": one.wait} for one in told.failed(number, agent)],
                "messages": [{"channel": one.channel, "text": self._text(one.text)} for one in messages],
                "decision": self._decision(number, agent),
            }

    def _said(self, said: ChatMessage) -> dict[str, Any]:
        name = {"name": said["name"]} if "name" in said else {}
        return {"role": said["role"], **name, "text": self._text(said["content"])}

    def _played(self, number: int, agent: str) -> Iterator[Call]:
        """An agent's answers in a round that were looked at: of each vote those up to the first that can be used."""
        ended = set()
        for call in self.game.rollout.calls:
            if (call.round, call.agent) == (number, agent) and call.is_answer and call.vote not in ended:
                yield call
                if self.game.told.answer(call).unusable_reason is None:
                    ended.add(call.vote)

    def _answer(self, call: Call) -> dict[str, Any]:
        answer = self.game.told.answer(call)
        found = {
            "attempt": answer.attempt,
            "vote": call.vote or None,
            "text": None if answer.text is None else self._text(answer.text),
            "reasoning": None if answer.reasoning is None else self._text(answer.reasoning),
            "finish": answer.finish_reason,
            "unusable": answer.unusable_reason,
            "error": call.error,
            "tokens": [call.prompt_tokens, call.completion_tokens, call.cached_tokens],
            "latency_ms": call.latency_ms,
            "usd": self._cost(call),
            "model": call.model,
            "p_accept": None if call.p_accept is None else call.p_accept.value,
            "logprobs": None if call.verdict_logprobs is None else json.loads(call.verdict_logprobs),
        }
        return {name: value for name, value in found.items() if value is not None}

    def _cost(self, call: Call) -> float | None:
        """Dollars; None where the price is not known."""
        if not call.paid:
            return 0.0
        told = self.game.told
        price = told.price_basis.price_of(told.agents[call.agent].model_settings)
        if price is None:
            return None
        return round(price.cost_of(call.usage), 9)

    def _decision(self, number: int, agent: str) -> int | None:
        rounds = self.game.rollout.rounds
        if agent != self.game.told.protocol.verifier_name or number >= len(rounds):
            return None
        decision = rounds[number].decision
        return None if decision == Decision.NONE else int(decision)


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
