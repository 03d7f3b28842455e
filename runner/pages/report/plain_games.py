"""Games of a run as pages that are read without a script, out of the pieces that the script reads."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

import orjson
from markupsafe import Markup

from runner.pages.html import rendered
from runner.pages.packing import read
from runner.pages.report.run_numbers import first_row
from runner.runs.finished.rollout_details import verdict_word

MOST_BYTES = 64 << 20
"""Of a piece; one is some MiB, but a game can be of any length."""
MOST_CHARACTERS = 1_000_000
"""Of one game's texts."""


def unpacked(data: bytes) -> dict[str, Any] | None:
    """A piece; None of one that is too large for a page."""
    inflating = zlib.decompressobj(wbits=31)
    text = inflating.decompress(data, MOST_BYTES)
    if not inflating.eof:
        return None
    found: dict[str, Any] = orjson.loads(text)
    return found


def row_at(piece: Mapping[str, Any], place: int) -> dict[str, Any]:
    """A row of the list's piece that has it, by its place among all games."""
    return first_row({name: values[place - piece["first"]] for name, values in piece["columns"].items()})


def games_section(rows: list[dict[str, Any]], first: int, count: int, **where: str | None) -> Markup:
    """Some rows of the list, each with a link to its game."""
    return rendered("served/games.html", {"rows": rows, "first": first, "count": count, **where})


def game_section(
    row: Mapping[str, Any], game: Mapping[str, Any], texts: list[str], about: Mapping[str, Any], **where: str | None
) -> Markup:
    """One game: its datapoint, and what was said in each round."""
    told = _Told(texts, about)
    facts = {
        "row": row, "error": game["error"],
        "columns": [(name, told.text(text)) for name, text in game["columns"].items()],
        "rounds": [
            (number, [told.turn(turn) for turn in turns])
            for number, turns in groupby(game["turns"], lambda turn: turn["round"])
        ],
    }  # fmt: skip
    return rendered("served/game.html", {**facts, "is_cut": told.left <= 0, **where})


class _Told:
    """Texts of a game, until there is enough of them."""

    def __init__(self, texts: list[str], about: Mapping[str, Any]) -> None:
        self._texts, self.left = texts, MOST_CHARACTERS
        self._agents = [agent["name"] for agent in about["agents"]]
        self._channels = len(about["channels"])

    def text(self, packed: Any) -> str:
        text = read(self._texts, packed)[: max(self.left, 0)]
        self.left -= len(text)
        return text

    def turn(self, turn: Mapping[str, Any]) -> dict[str, Any]:
        decision = turn["decision"]
        return {
            "agent": turn["agent"], "place": self._agents.index(turn["agent"]) % 6, "cut_off": turn["cut_off"],
            "decides": None if decision is None else verdict_word(decision),
            "messages": list(self._messages(turn)),
            "unusable": [answer["unusable"] for answer in turn["answers"] if answer.get("unusable")],
        }  # fmt: skip

    def _messages(self, turn: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        for one in turn["messages"]:
            yield {"channel": one["channel"] if self._channels > 1 else None, "text": self.text(one["text"])}
        usable = [one for one in turn["answers"] if not one.get("unusable")]
        if not turn["messages"] and usable and usable[-1].get("text") is not None:
            yield {"channel": None, "text": self.text(usable[-1]["text"])}
