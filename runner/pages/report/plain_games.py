"""Renders games of a run for browsers without JavaScript, from the pieces that the script would read."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import orjson

from runner.game.protocols.protocol import label_player, verdict_word
from runner.pages.packing import Text, resolve_text
from runner.pages.report.run_numbers import GameRow
from runner.pages.report.served import View

MAX_PIECE_BYTES = 64 << 20
"""Maximum bytes of an unpacked piece. Most pieces have a few MiB, but a game can have any length."""
MAX_CHARACTERS = 1_000_000
"""Maximum characters of one game's texts on a page."""


def unpack_piece(data: bytes) -> dict[str, object] | None:
    """Unpack a piece, or return None if it is too large for a page."""
    decompressor = zlib.decompressobj(wbits=31)
    text = decompressor.decompress(data, MAX_PIECE_BYTES)
    if not decompressor.eof:
        return None
    piece: dict[str, Any] = orjson.loads(text)
    return piece


def row_at(piece: Mapping[str, Any], place: int) -> GameRow:
    """Return a game's row from a piece of the list, by the game's place among all games."""
    return GameRow.from_row({name: values[place - piece["first"]] for name, values in piece["columns"].items()})


@dataclass(frozen=True, kw_only=True)
class GamesView(View):
    """A part of the list of a run's games."""

    template = "games"

    rows: Sequence[GameRow]
    first: int
    """The place of the first row among all games, from 0."""
    count: int
    """The number of all games."""
    run_path: str
    """The path of the run's page."""
    before: str | None
    """The URL of the previous part; None if there is none."""
    after: str | None
    """The URL of the next part; None if there is none."""


@dataclass(frozen=True)
class MessageView:
    """A message in a turn."""

    channel: str | None
    """The channel's name; None if the protocol has only one channel."""
    text: str


@dataclass(frozen=True, kw_only=True)
class TurnView:
    """An agent's turn in a round."""

    agent: str
    player: str
    """The agent's name, its name in the chats, and its stance."""
    color: int
    """The number of the agent's color."""
    cut_off: bool
    verdict: str | None
    is_ignored: bool
    """Whether the verdict came in a round without verdicts."""
    statements: Sequence[str]
    messages: Sequence[MessageView]
    unusable: Sequence[str]
    """Why each unusable answer could not be used."""


@dataclass(frozen=True, kw_only=True)
class GameView(View):
    """A game: the datapoint, and the messages of each round."""

    template = "game"

    row: GameRow
    columns: Sequence[tuple[str, str]]
    """The name and the text of each column of the datapoint."""
    rounds: Sequence[tuple[int, Sequence[TurnView]]]
    error: str | None
    is_cut: bool
    """Whether texts were cut."""
    before: str | None
    """The URL of the previous game; None if there is none."""
    after: str | None
    """The URL of the next game; None if there is none."""


def game_view(
    row: GameRow,
    game: Mapping[str, Any],
    texts: Sequence[str],
    run_data: Mapping[str, Any],
    *,
    before: str | None,
    after: str | None,
) -> GameView:
    """Return the view of a game from its piece; `run_data` is the entry of the run in `about.runs`."""
    reader = _TextReader(texts, run_data, game.get("stances", {}))
    columns = [(name, reader.text(text)) for name, text in game["columns"].items()]
    rounds = [
        (number, [reader.turn(turn) for turn in turns])
        for number, turns in groupby(game["turns"], lambda turn: turn["round"])
    ]
    return GameView(
        row=row,
        columns=columns,
        rounds=rounds,
        error=game["error"],
        is_cut=reader.left <= 0,
        before=before,
        after=after,
    )


class _TextReader:
    """Reads texts of a game until `MAX_CHARACTERS` is reached."""

    def __init__(self, texts: Sequence[str], run_data: Mapping[str, Any], stances: Mapping[str, int | str]) -> None:
        self._texts, self.left, self._stances = texts, MAX_CHARACTERS, stances
        self._agents = [agent["name"] for agent in run_data["agents"]]
        self._chat_names = {agent["name"]: agent.get("known_as") for agent in run_data["agents"]}
        self._channels = len(run_data["channels"])

    def text(self, packed: Text) -> str:
        text = resolve_text(self._texts, packed)[: max(self.left, 0)]
        self.left -= len(text)
        return text

    def turn(self, turn: Mapping[str, Any]) -> TurnView:
        agent, decision = turn["agent"], turn["decision"]
        return TurnView(
            agent=agent,
            player=label_player(agent, self._stances.get(agent), self._chat_names[agent]),
            color=self._agents.index(agent) % 6,
            cut_off=turn["cut_off"],
            verdict=None if decision is None else verdict_word(decision),
            is_ignored=turn.get("ignored", False),
            statements=turn.get("stated", ()),
            messages=list(self._messages(turn)),
            unusable=[answer["unusable"] for answer in turn["answers"] if answer.get("unusable")],
        )

    def _messages(self, turn: Mapping[str, Any]) -> Iterator[MessageView]:
        for message in turn["messages"]:
            yield MessageView(message["channel"] if self._channels > 1 else None, self.text(message["text"]))
        usable = [message for message in turn["answers"] if not message.get("unusable")]
        if not turn["messages"] and usable and usable[-1].get("text") is not None:
            yield MessageView(None, self.text(usable[-1]["text"]))
