"""Handlers for the messages of workers that are not about games: permits, server failures, notes and counts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from runner.runs.workers import messages
from runner.runs.workers.worker_state import WorkerSlot, WriterState


class WorkerEvents:
    """Dispatches messages of workers to the parts of the writer, or to the other workers."""

    def __init__(self, state: WriterState, slots: Sequence[WorkerSlot]) -> None:
        self._state, self._slots = state, slots
        self._answered = set(state.start.answered)
        self._down: dict[str, set[int]] = {}
        """The slots whose workers cannot reach a server, by its address."""
        self._is_stopping = False
        permits = state.permits
        self.actions: Mapping[type, Callable[[WorkerSlot, Any], None]] = {
            messages.Ask: lambda slot, message: permits.ask(slot.calls, message),
            messages.Ended: lambda slot, message: permits.end(slot.calls, message),
            messages.GaveUp: lambda slot, message: permits.give_up(slot.calls, message.number),
            messages.CallRefused: lambda slot, message: permits.refuse(slot.calls, message.sample),
            messages.RatesLearned: lambda _, message: permits.learn(message.group, message.server, message.headers),
            messages.AnswersCounted: self._counted,
            messages.ServerDown: self._server_down,
            messages.Unlike: lambda _, message: state.notes.unlike(*message),
            messages.Noted: lambda _, message: state.notes.note(message.line, message.subject),
            messages.Logged: lambda _, message: logging.getLogger(message.logger).log(
                message.level, "%s", message.line
            ),
            messages.TemplateRendered: self._rendered,
        }
        """The handler of each type of message."""

    def greet(self, slot: WorkerSlot) -> None:
        """Send a worker that is ready the state that the other workers have."""
        if self._answered:
            slot.send(messages.GroupsAnswered(frozenset(self._answered)))
        if self._is_stopping:
            slot.send(messages.StopRequest())

    def send_stop(self) -> None:
        """Send a stop request to all workers, once, if the run is stopping."""
        if self._state.stop.stopping and not self._is_stopping:
            self._is_stopping = True
            for slot in self._slots:
                if slot.is_ready:
                    slot.send(messages.StopRequest())

    def remove(self, slot: WorkerSlot) -> None:
        """Forget which servers a worker that is gone could not reach."""
        for server in self._down:
            self._server_down(slot, messages.ServerDown(server, None))

    def _rendered(self, _: WorkerSlot, message: messages.TemplateRendered) -> None:
        self._state.plan.spec.prompts.rendered.put(message.key, message.text)

    def _counted(self, _: WorkerSlot, message: messages.AnswersCounted) -> None:
        self._state.accounting.count_remote_answers(
            message.group, message.answers, message.repeats, from_cache=message.from_cache
        )
        self._state.accounting.count_new(message.new_answers)
        if message.group not in self._answered:
            self._answered.add(message.group)
            for slot in self._slots:
                if slot.is_ready:
                    slot.send(messages.GroupsAnswered(frozenset((message.group,))))

    def _server_down(self, slot: WorkerSlot, message: messages.ServerDown) -> None:
        """Keep a warning while at least one worker cannot reach the server."""
        reporting_slots = self._down.setdefault(message.server, set())
        had_warning = bool(reporting_slots)
        if message.message is None:
            reporting_slots.discard(slot.number)
        else:
            reporting_slots.add(slot.number)
        if bool(reporting_slots) != had_warning:
            self._state.accounting.warn(message.server, message.message)
