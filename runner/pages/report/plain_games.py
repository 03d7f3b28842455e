"""Renders games of a run for browsers without JavaScript, from the pieces that the script would read."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

import orjson
from markupsafe import Markup

from runner.game.protocols.protocol import label_player, verdict_word
from runner.pages.html import render_template
from runner.pages.packing import resolve_text
from runner.pages.report.run_numbers import first_row

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


def row_at(piece: Mapping[str, Any], place: int) -> dict[str, Any]:
    """Return a game's row from a piece of the list, by the game's place among all games."""
    return first_row({name: values[place - piece["first"]] for name, values in piece["columns"].items()})


def games_section(rows: list[dict[str, Any]], first: int, count: int, **where: str | None) -> Markup:
    """Render rows of the list, with links to the games; `where` has the URLs for the template."""
    return render_template("served/games.html", {"rows": rows, "first": first, "count": count, **where})


def game_section(
    row: Mapping[str, Any], game: Mapping[str, Any], texts: list[str], about: Mapping[str, Any], **where: str | None
) -> Markup:
    """Render a game: the datapoint, and the messages of each round; `where` has the URLs for the template."""
    reader = _TextReader(texts, about, game.get("stances", {}))
    facts = {
        "row": row, "error": game["error"],
        "columns": [(name, reader.text(text)) for name, text in game["columns"].items()],
        "rounds": [
            (number, [reader.turn(turn) for turn in turns])
            for number, turns in groupby(game["turns"], lambda turn: turn["round"])
        ],
    }  # fmt: skip
    return render_template("served/game.html", {**facts, "is_cut": reader.left <= 0, **where})


class _TextReader:
    """Reads texts of a game until `MAX_CHARACTERS` is reached."""

    def __init__(self, texts: list[str], about: Mapping[str, Any], stances: Mapping[str, int | str]) -> None:
        self._texts, self.left, self._stances = texts, MAX_CHARACTERS, stances
        self._agents = [agent["name"] for agent in about["agents"]]
        self._chat_names = {agent["name"]: agent.get("known_as") for agent in about["agents"]}
        self._channels = len(about["channels"])

    def text(self, packed: Any) -> str:
        text = resolve_text(self._texts, packed)[: max(self.left, 0)]
        self.left -= len(text)
        return text

    def turn(self, turn: Mapping[str, Any]) -> dict[str, Any]:
        agent, decision = turn["agent"], turn["decision"]
        return {
            "agent": agent, "player": label_player(agent, self._stances.get(agent), self._chat_names[agent]),
            "place": self._agents.index(agent) % 6, "cut_off": turn["cut_off"],
            "decides": None if decision is None else verdict_word(decision), "ignored": turn.get("ignored", False),
            "stated": turn.get("stated", ()),
            "messages": list(self._messages(turn)),
            "unusable": [answer["unusable"] for answer in turn["answers"] if answer.get("unusable")],
        }  # fmt: skip

    def _messages(self, turn: Mapping[str, Any]) -> Iterator[dict[str, object]]:
        for message in turn["messages"]:
            yield {"channel": message["channel"] if self._channels > 1 else None, "text": self.text(message["text"])}
        usable = [message for message in turn["answers"] if not message.get("unusable")]
        if not turn["messages"] and usable and usable[-1].get("text") is not None:
            yield {"channel": None, "text": self.text(usable[-1]["text"])}
