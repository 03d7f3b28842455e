"""A protocol as a picture: agents side by side, rounds from above, who speaks in which channel, and who hears it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from markupsafe import Markup

from runner.game.protocols.protocol import Protocol
from runner.game.protocols.schedule import ScheduledRound, Speech, Stretch, folded, schedule
from runner.pages.charts.drawing import Drawing
from runner.pages.charts.labels import listed, visible, width_of
from runner.pages.charts.styles import PAGE, Look, dashes

_PRIVATE = (4.0, 2.5)


def protocol_picture(protocol: Protocol, *, title: str = "", look: Look = PAGE, key: str = "") -> Markup:
    """The longest game of a protocol; rounds that repeat earlier ones are named and not drawn again."""
    picture = _Picture(protocol, title or f"The protocol {protocol.name}", look)
    rounds = schedule(protocol)
    for stretch in folded(rounds, len(protocol.steps)):
        for number in range(stretch.first, stretch.last + 1):
            picture.round(number, rounds[number])
        for words in _repeats(stretch):
            picture.words(words)
    return picture.svg(rounds, key)


class _Picture:
    def __init__(self, protocol: Protocol, title: str, look: Look) -> None:
        self._protocol, names = protocol, protocol.agent_names
        left = look.size * 3.4
        each = max((look.width - left) / len(names), look.size * 5.5)
        self._left, self._each, self._names = left, each, names
        self._drawing = Drawing(look, title, left + each * len(names))
        self._head()

    def _x(self, agent: str) -> float:
        """Return the middle of an agent's column."""
        return self._left + (self._names.index(agent) + 0.5) * self._each

    def _head(self) -> None:
        drawing, size = self._drawing, self._drawing.size
        drawing.y += size * 1.4
        for name in self._names:
            series = self._names.index(name)
            most = self._each - size * 0.5
            drawing.text(
                self._x(name), drawing.y, name, "own-text", anchor="middle", most=most, bold=True, series=series
            )
        drawing.text(0, drawing.y, "round", "soft")
        drawing.y += size * 0.6

    def round(self, number: int, played: ScheduledRound) -> None:
        """A row for each message of a round; those of one round are on one ground."""
        drawing, size = self._drawing, self._drawing.size
        top, high = drawing.y, size * (0.5 + 2.3 * max(len(played.speech), 1))
        drawing.rect(0, top, drawing.width, high - size * 0.25, "track")
        self._lifelines(top, high)
        drawing.text(size * 0.5, top + size * 1.75, str(number))
        if not played.speech:
            drawing.text(self._left, top + size * 1.75, "nobody speaks", "soft")
        shown = set()
        for row, speech in enumerate(played.speech):
            y = top + size * (1.75 + 2.3 * row)
            self._speech(speech, y, speech.agent in played.may_decide and speech.agent not in shown)
            shown.add(speech.agent)
        drawing.y = top + high
        if played.draw == "one":
            self.words("one of them speaks, drawn by lot")

    def _lifelines(self, top: float, high: float) -> None:
        for name in self._names:
            x = self._x(name)
            self._drawing.line(x, top, x, top + high, "grid")

    def _speech(self, speech: Speech, y: float, may_decide: bool) -> None:
        """A line from who speaks to all who hear it, with the channel's name over it."""
        drawing, size = self._drawing, self._drawing.size
        series, own = self._names.index(speech.agent), self._x(speech.agent)
        hearers = [self._x(name) for name in speech.heard_by]
        pattern = dashes(drawing.look, _PRIVATE) if self._is_private(speech.channel) else "none"
        for end in {min(hearers, default=own), max(hearers, default=own)} - {own}:
            drawing.line(own, y, end, y, "line", series=series, stroke_dasharray=pattern)
        for x in hearers:
            back = size * 0.5 if x < own else -size * 0.5
            tip = [(x + back, y - size * 0.32), (x, y), (x + back, y + size * 0.32)]
            drawing.polygon(tip, "mark", series)
        about = f"{speech.agent} speaks in {speech.channel}; {_heard(speech)}{'; it may decide' if may_decide else ''}"
        if may_decide:
            self._draw_decision(own, y, series, about)
        else:
            drawing.add("circle", "mark", series, about, cx=own, cy=y, r=size * 0.32)
        self._named(speech, own, hearers, y)

    def _draw_decision(self, x: float, y: float, series: int, title: str | None = None) -> None:
        r = self._drawing.size * 0.55
        self._drawing.polygon([(x, y - r), (x + r, y), (x, y + r), (x - r, y)], "hollow", series, title)

    def _named(self, speech: Speech, own: float, hearers: Sequence[float], y: float) -> None:
        """The channel's name where there are several, or nobody hears it."""
        drawing, size = self._drawing, self._drawing.size
        words = speech.channel if hearers else f"{speech.channel}: nobody hears it"
        if hearers and len(self._protocol.channel_names) < 2:
            return
        places = [own, *hearers] if hearers else [own]
        left, right = min(places), max(places)
        wide = min(width_of(visible(words), size), drawing.width - self._left)
        begin = (left + right) / 2 - wide / 2
        if not hearers:
            begin = own + size if own + size + wide <= drawing.width else own - size - wide
            drawing.text(max(begin, 0.0), y + size * 0.35, words, "soft", most=wide)
            return
        begin = max(min(begin, drawing.width - wide - size * 0.3), self._left)
        drawing.text(begin, y - size * 0.55, words, "soft", most=wide)

    def _is_private(self, channel: str) -> bool:
        return len(self._protocol.file.channels[channel].members) < len(self._names)

    def words(self, words: str) -> None:
        drawing, size = self._drawing, self._drawing.size
        drawing.y += size * 1.3
        drawing.text(size * 0.5, drawing.y - size * 0.2, words, "soft", most=drawing.width - size)
        drawing.y += size * 0.4

    def svg(self, rounds: Sequence[ScheduledRound], key: str) -> Markup:
        drawing, size = self._drawing, self._drawing.size
        drawing.y += size * 0.4
        for name, channel in self._protocol.file.channels.items():
            drawing.y += size * 1.4
            middle, wide = drawing.y - size * 0.35, size * 2.6
            pattern = dashes(drawing.look, _PRIVATE) if self._is_private(name) else "none"
            drawing.line(0, middle, wide, middle, "over", stroke_dasharray=pattern)
            is_private = self._is_private(name)
            words = f"{name}, private: {', '.join(channel.members)}" if is_private else f"{name}: seen by all"
            drawing.text(wide + size * 0.6, drawing.y, words, most=drawing.width - wide - size * 0.6)
        if any(one.may_decide for one in rounds):
            drawing.y += size * 1.4
            self._draw_decision(size * 1.3, drawing.y - size * 0.35, self._names.index(self._protocol.verifier_name))
            drawing.text(
                size * 3.2, drawing.y, f"{self._protocol.verifier_name} may decide", most=drawing.width - size * 3.2
            )
        drawing.y += size * 0.5
        return drawing.svg(f"{len(rounds)} rounds at most. {listed(_told(rounds), 24)}", key)


def _repeats(stretch: Stretch) -> Iterator[str]:
    """Which rounds are as which: whole cycles, then the start of one that the game's end cuts short."""
    period, begun = stretch.last - stretch.first + 1, stretch.last + 1
    cut = (stretch.until - stretch.last) % period
    if stretch.until - cut > stretch.last:
        yield _as(begun, stretch.until - cut, stretch.first, stretch.last)
    if cut:
        yield _as(stretch.until - cut + 1, stretch.until, stretch.first, stretch.first + cut - 1)


def _as(first: int, last: int, one: int, other: int) -> str:
    rounds = f"round {first}" if first == last else f"rounds {first} to {last}"
    return f"{rounds}: as {one}" if one == other else f"{rounds}: as {one} to {other}"


def _heard(speech: Speech) -> str:
    return f"{', '.join(speech.heard_by)} can see it" if speech.heard_by else "nobody else can see it"


def _told(rounds: Sequence[ScheduledRound]) -> Iterator[str]:
    for number, played in enumerate(rounds):
        for speech in played.speech:
            decides = ", and may decide" if speech.agent in played.may_decide else ""
            yield f"round {number}: {speech.agent} in {speech.channel}{decides}, {_heard(speech)}"
        if not played.speech:
            yield f"round {number}: nobody"
