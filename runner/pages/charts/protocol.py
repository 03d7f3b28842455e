"""A sequence diagram of a protocol (the rules of a game), for the page of a run.

Agents are columns, rounds are rows, and arrows lead from the speaker of a message to the agents who hear it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from markupsafe import Markup

from runner.game.protocols.protocol import Protocol
from runner.game.protocols.schedule import ScheduledRound, Speech, Stretch, fold_rounds, schedule
from runner.pages.charts.drawing import Drawing
from runner.pages.charts.labels import join_facts, width_of
from runner.pages.charts.styles import PAGE, ChartFrame, Look, dashes

_PRIVATE = (4.0, 2.5)
"""Dash pattern of the lines in private channels, which not all agents read."""


def protocol_picture(protocol: Protocol, *, look: Look = PAGE, title: str | None = None, key: str = "") -> Markup:
    """Draw the longest game of a protocol. Rounds that repeat earlier rounds are only named."""
    picture = _Picture(protocol, ChartFrame(title or f"The protocol {protocol.name}", look, key))
    rounds = schedule(protocol)
    for stretch in fold_rounds(rounds, len(protocol.steps)):
        for number in range(stretch.first, stretch.last + 1):
            picture.draw_round(number, rounds[number])
        for text in _repeats(stretch):
            picture.draw_text(text)
    return picture.svg(rounds)


class _Picture:
    """The diagram under construction: the names of the agents, then a row for each round or text."""

    def __init__(self, protocol: Protocol, frame: ChartFrame) -> None:
        look = frame.look
        self._protocol, self._names = protocol, protocol.agent_names
        self._left = look.size * 3.4
        """Width of the space for the numbers of rounds, to the left of the agents' columns."""
        self._column_width = max((look.width - self._left) / len(self._names), look.size * 5.5)
        width = self._left + self._column_width * len(self._names)
        self._drawing = Drawing(frame, width)
        self._draw_header()

    def _x(self, agent: str) -> float:
        """Return the middle of an agent's column."""
        return self._left + (self._names.index(agent) + 0.5) * self._column_width

    def _draw_header(self) -> None:
        drawing, size = self._drawing, self._drawing.size
        drawing.y += size * 1.4
        for name in self._names:
            series = self._names.index(name)
            most = self._column_width - size * 0.5
            drawing.text(
                self._x(name), drawing.y, name, "own-text", anchor="middle", max_width=most, bold=True, series=series
            )
        drawing.text(0, drawing.y, "round", "soft")
        drawing.y += size * 0.6

    def draw_round(self, number: int, scheduled: ScheduledRound) -> None:
        """Draw a row for each message of a round, on a shared background."""
        drawing, size = self._drawing, self._drawing.size
        top, height = drawing.y, size * (0.5 + 2.3 * max(len(scheduled.speech), 1))
        drawing.rect(0, top, drawing.width, height - size * 0.25, "track")
        self._draw_lifelines(top, height)
        drawing.text(size * 0.5, top + size * 1.75, str(number))
        if not scheduled.speech:
            drawing.text(self._left, top + size * 1.75, "no agent speaks", "soft")
        marked_agents = set()  # only the first message of an agent in a round shows that the agent may decide
        for row, speech in enumerate(scheduled.speech):
            y = top + size * (1.75 + 2.3 * row)
            self._draw_message(speech, y, speech.agent in scheduled.may_decide and speech.agent not in marked_agents)
            marked_agents.add(speech.agent)
        drawing.y = top + height
        if scheduled.draw == "one":
            self.draw_text("one of these agents speaks, chosen at random")

    def _draw_lifelines(self, top: float, height: float) -> None:
        for name in self._names:
            x = self._x(name)
            self._drawing.line(x, top, x, top + height, "grid")

    def _draw_message(self, speech: Speech, y: float, may_decide: bool) -> None:
        """Draw a line from the speaker to all hearers, with the channel's name above it."""
        drawing, size = self._drawing, self._drawing.size
        series, speaker_x = self._names.index(speech.agent), self._x(speech.agent)
        hearers = [self._x(name) for name in speech.heard_by]
        pattern = dashes(drawing.look, _PRIVATE) if self._is_private(speech.channel) else "none"
        # One line to the leftmost and one to the rightmost hearer cross all hearers between them.
        for end in {min(hearers, default=speaker_x), max(hearers, default=speaker_x)} - {speaker_x}:
            drawing.line(speaker_x, y, end, y, "line", series=series, stroke_dasharray=pattern)
        for x in hearers:
            back = size * 0.5 if x < speaker_x else -size * 0.5
            tip = [(x + back, y - size * 0.32), (x, y), (x + back, y + size * 0.32)]
            drawing.polygon(tip, "mark", series)
        tooltip = f"{speech.agent} speaks in {speech.channel}; {_hearers(speech)}"
        if may_decide:
            self._draw_decision(speaker_x, y, series, f"{tooltip}; {speech.agent} may decide")
        else:
            drawing.add("circle", "mark", series, tooltip, cx=speaker_x, cy=y, r=size * 0.32)
        self._draw_channel_name(speech, speaker_x, hearers, y)

    def _draw_decision(self, x: float, y: float, series: int, title: str | None = None) -> None:
        r = self._drawing.size * 0.55
        self._drawing.polygon([(x, y - r), (x + r, y), (x, y + r), (x - r, y)], "hollow", series, title)

    def _draw_channel_name(self, speech: Speech, speaker_x: float, hearers: Sequence[float], y: float) -> None:
        """Draw the channel's name, if there are several channels or no agent hears the message."""
        drawing, size = self._drawing, self._drawing.size
        label = speech.channel if hearers else f"{speech.channel}: no other agent hears this message"
        if hearers and len(self._protocol.channel_names) < 2:
            return
        width = min(width_of(label, size), drawing.width - self._left)
        if not hearers:  # the label is next to the speaker
            fits_right = speaker_x + size + width <= drawing.width
            begin = speaker_x + size if fits_right else max(speaker_x - size - width, 0.0)
            drawing.text(begin, y + size * 0.35, label, "soft", max_width=width)
            return
        middle = (min(speaker_x, *hearers) + max(speaker_x, *hearers)) / 2
        begin = max(min(middle - width / 2, drawing.width - width - size * 0.3), self._left)
        drawing.text(begin, y - size * 0.55, label, "soft", max_width=width)

    def _is_private(self, channel: str) -> bool:
        return len(self._protocol.file.channels[channel].members) < len(self._names)

    def draw_text(self, text: str) -> None:
        """Draw a row with a text."""
        drawing, size = self._drawing, self._drawing.size
        drawing.y += size * 1.3
        drawing.text(size * 0.5, drawing.y - size * 0.2, text, "soft", max_width=drawing.width - size)
        drawing.y += size * 0.4

    def svg(self, rounds: Sequence[ScheduledRound]) -> Markup:
        """Draw a legend of the channels, and return the diagram."""
        drawing, size = self._drawing, self._drawing.size
        drawing.y += size * 0.4
        for name, channel in self._protocol.file.channels.items():
            drawing.y += size * 1.4
            middle, width = drawing.y - size * 0.35, size * 2.6
            pattern = dashes(drawing.look, _PRIVATE) if self._is_private(name) else "none"
            drawing.line(0, middle, width, middle, "over", stroke_dasharray=pattern)
            is_private = self._is_private(name)
            label = f"{name}, private: {', '.join(channel.members)}" if is_private else f"{name}: seen by all"
            drawing.text(width + size * 0.6, drawing.y, label, max_width=drawing.width - width - size * 0.6)
        if any(scheduled.may_decide for scheduled in rounds):
            drawing.y += size * 1.4
            judges = self._protocol.verifier_names
            self._draw_decision(size * 1.3, drawing.y - size * 0.35, self._names.index(judges[0]))
            label = f"{', '.join(judges)} may decide"
            drawing.text(size * 3.2, drawing.y, label, max_width=drawing.width - size * 3.2)
        drawing.y += size * 0.5
        return drawing.svg(f"{len(rounds)} rounds at most. {join_facts(_descriptions(rounds), 24)}")


def _repeats(stretch: Stretch) -> Iterator[str]:
    """Yield texts that name repeated rounds: complete cycles, then a cycle that the end of the game cuts short."""
    period = stretch.last - stretch.first + 1
    remainder = (stretch.until - stretch.last) % period
    if stretch.until - remainder > stretch.last:
        yield _repeat_text(stretch.last + 1, stretch.until - remainder, stretch.first, stretch.last)
    if remainder:
        yield _repeat_text(stretch.until - remainder + 1, stretch.until, stretch.first, stretch.first + remainder - 1)


def _repeat_text(first: int, last: int, start: int, end: int) -> str:
    """Return a text that the rounds `first` to `last` are the same as the rounds `start` to `end`."""
    rounds = f"round {first}" if first == last else f"rounds {first} to {last}"
    return f"{rounds}: same as {start}" if start == end else f"{rounds}: same as {start} to {end}"


def _hearers(speech: Speech) -> str:
    return f"heard by {', '.join(speech.heard_by)}" if speech.heard_by else "heard by no other agent"


def _descriptions(rounds: Sequence[ScheduledRound]) -> Iterator[str]:
    for number, scheduled in enumerate(rounds):
        for speech in scheduled.speech:
            decides = ", and may decide" if speech.agent in scheduled.may_decide else ""
            yield f"round {number}: {speech.agent} in {speech.channel}{decides}, {_hearers(speech)}"
        if not scheduled.speech:
            yield f"round {number}: no agent"
