"""What workers tell the writer besides their games: calls to be allowed, servers that are down, notes, counts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from runner.runs.workers import messages
from runner.runs.workers.worker_state import WorkerSlot, WriterState


class WorkerNotifications:
    """Passes on what workers tell, to whoever of the writer, or of the other workers, is to know."""

    def __init__(self, held: WriterState, places: Sequence[WorkerSlot]) -> None:
        self._held, self._places = held, places
        self._answered = set(held.start.answered)
        self._down: dict[str, set[int]] = {}
        """The places whose workers see a server down, by its address."""
        self._told_to_stop = False
        permits = held.permits
        self.actions: Mapping[type, Callable[[WorkerSlot, Any], None]] = {
            messages.Ask: lambda place, message: permits.ask(place.asking, message),
            messages.AskAhead: lambda place, message: permits.ask_ahead(place.asking, message),
            messages.Used: lambda place, message: permits.used(place.asking, message),
            messages.Unused: lambda place, message: permits.unused(place.asking, message),
            messages.Ended: lambda place, message: permits.ended(place.asking, message),
            messages.GaveUp: lambda place, message: permits.gave_up(place.asking, message.number),
            messages.CallRefused: lambda place, message: permits.refused(place.asking, message.sample),
            messages.Learned: lambda _, message: permits.learn(message.group, message.server, message.headers),
            messages.AnswersCounted: self._counted,
            messages.ServerDown: self._server_down,
            messages.Unlike: lambda _, message: held.notes.unlike(*message),
            messages.Noted: lambda _, message: held.notes.note(message.line, message.about),
            messages.Logged: lambda _, message: logging.getLogger(message.logger).log(
                message.level, "%s", message.line
            ),
            messages.TemplateRendered: self._rendered,
        }
        """What is done with each kind of message."""

    def greet(self, place: WorkerSlot) -> None:
        """Tell a worker that is ready what the others know."""
        if self._answered:
            place.send(messages.GroupsAnswered(frozenset(self._answered)))
        if self._told_to_stop:
            place.send(messages.StopRequest())

    def tell_stop(self) -> None:
        """Tell all workers, once, that the run is to stop, where it is."""
        if self._held.stop.stopping and not self._told_to_stop:
            self._told_to_stop = True
            for place in self._places:
                if place.is_ready:
                    place.send(messages.StopRequest())

    def died(self, place: WorkerSlot) -> None:
        """A worker is gone: it sees no server down any more."""
        for server in self._down:
            self._server_down(place, messages.ServerDown(server, None))

    def _rendered(self, _: WorkerSlot, message: messages.TemplateRendered) -> None:
        self._held.plan.spec.prompts.rendered.put(message.key, message.text)

    def _counted(self, _: WorkerSlot, message: messages.AnswersCounted) -> None:
        self._held.accounting.answered_elsewhere(
            message.group, message.answers, message.repeats, from_cache=message.from_cache
        )
        self._held.accounting.count_new(message.new_answers)
        if message.group not in self._answered:
            self._answered.add(message.group)
            for place in self._places:
                if place.is_ready:
                    place.send(messages.GroupsAnswered(frozenset((message.group,))))

    def _server_down(self, place: WorkerSlot, message: messages.ServerDown) -> None:
        """A server is down while one worker at least says so."""
        seen = self._down.setdefault(message.server, set())
        before = bool(seen)
        if message.message is None:
            seen.discard(place.number)
        else:
            seen.add(place.number)
        if bool(seen) != before:
            self._held.accounting.warn(message.server, message.message)
