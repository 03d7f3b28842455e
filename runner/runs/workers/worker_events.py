"""Handles the workers' messages that are not about single games: permits, server failures, notes and counts.

The scheduler passes these messages on. They affect all workers of a run, or only its counts and notes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from runner.runs.workers import messages
from runner.runs.workers.worker_state import WorkerSlot, WriterState


class WorkerEvents:
    """Passes messages of workers to other parts of the writer, or on to the other workers."""

    def __init__(self, state: WriterState, slots: Sequence[WorkerSlot]) -> None:
        self._state, self._slots = state, slots
        self._answered = set(state.start.answered)
        self._down: dict[str, set[int]] = {}
        """The slots whose workers cannot reach a server, by the server's address."""
        self._is_stopping = False
        permits = state.permits
        self.actions: Mapping[type, Callable[[WorkerSlot, Any], None]] = {
            messages.PermitRequested: lambda slot, message: permits.request(slot.calls, message),
            messages.CallEnded: lambda slot, message: permits.finish(slot.calls, message),
            messages.CallAbandoned: lambda slot, message: permits.abandon(slot.calls, message.number),
            messages.CallRefused: lambda slot, message: permits.refuse(slot.calls, message.sample),
            messages.RatesLearned: lambda _, message: permits.apply_rate_limits(
                message.group, message.server, message.headers
            ),
            messages.AnswersCounted: self._count_answers,
            messages.ServerDown: self._update_warning,
            messages.UnlikeServer: lambda _, message: state.notes.report_unlike(*message),
            messages.NoteAdded: lambda _, message: state.notes.note(message.line, message.subject),
            messages.LogLine: lambda _, message: logging.getLogger(message.logger).log(
                message.level, "%s", message.line
            ),
            messages.TemplateRendered: self._store_rendered,
        }
        """The handler of each type of message."""

    def send_run_state(self, slot: WorkerSlot) -> None:
        """Send a worker that has become ready the state that the other workers already have."""
        if self._answered:
            slot.send(messages.GroupsAnswered(frozenset(self._answered)))
        if self._is_stopping:
            slot.send(messages.StopRequest())

    def forward_stop(self) -> None:
        """Send all workers a stop request if the run is stopping and they have not received one yet."""
        if self._state.stop.stopping and not self._is_stopping:
            self._is_stopping = True
            for slot in self._slots:
                if slot.is_ready:
                    slot.send(messages.StopRequest())

    def remove(self, slot: WorkerSlot) -> None:
        """Remove a dead worker from the warnings about servers that it could not reach."""
        for server in self._down:
            self._update_warning(slot, messages.ServerDown(server, None))

    def _store_rendered(self, _: WorkerSlot, message: messages.TemplateRendered) -> None:
        self._state.plan.spec.prompts.rendered.put(message.key, message.text)

    def _count_answers(self, _: WorkerSlot, message: messages.AnswersCounted) -> None:
        self._state.accounting.count_remote_answers(
            message.group, message.answers, message.repeats, from_cache=message.from_cache
        )
        self._state.accounting.count_new(message.new_answers)
        if message.group not in self._answered:
            self._answered.add(message.group)
            for slot in self._slots:
                if slot.is_ready:
                    slot.send(messages.GroupsAnswered(frozenset((message.group,))))

    def _update_warning(self, slot: WorkerSlot, message: messages.ServerDown) -> None:
        """Show a warning about a server while at least one worker cannot reach the server."""
        reporting_slots = self._down.setdefault(message.server, set())
        had_warning = bool(reporting_slots)
        if message.message is None:
            reporting_slots.discard(slot.number)
        else:
            reporting_slots.add(slot.number)
        if bool(reporting_slots) != had_warning:
            self._state.accounting.warn(message.server, message.message)
