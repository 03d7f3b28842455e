"""Handles the workers' messages that are not about single games: permits, states of servers, notes and counts.

The scheduler (`runner.runs.workers.scheduler`) passes these messages on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from runner.runs.workers import messages
from runner.runs.workers.writer_state import WorkerSlot, WriterState


class WorkerMessageHandler:
    """Passes messages of workers to the writer's objects for permits, counts, notes and logs, or to other workers."""

    def __init__(self, state: WriterState, slots: Sequence[WorkerSlot]) -> None:
        self._state, self._slots = state, slots
        self._answered_model_groups = set(state.start_message.answered_model_groups)
        """The model groups whose servers have answered at least once."""
        self._reporting_slots: dict[str, set[int]] = {}
        """The numbers of the slots whose workers report a problem with a server, for each server's address."""
        self._has_sent_stop = False
        permits = state.permits
        self.handlers: Mapping[type, Callable[[WorkerSlot, Any], None]] = {
            messages.PermitRequested: lambda slot, message: permits.request_permit(slot.calls, message),
            messages.CallEnded: lambda slot, message: permits.finish_call(slot.calls, message),
            messages.CallAbandoned: lambda slot, message: permits.abandon_call(slot.calls, message.call_number),
            messages.CallRefused: lambda slot, message: permits.discard(slot.calls, message.sample),
            messages.RateLimitsReported: lambda _, message: permits.apply_rate_limits(
                message.group, message.server, message.headers
            ),
            messages.AnswersCounted: self._count_answers,
            messages.ServerStatus: self._update_warning,
            messages.DifferingServer: lambda _, message: state.notes.report_differing_server(*message),
            messages.NoteAdded: lambda _, message: state.notes.note(message.line, message.subject),
            messages.LogLine: lambda _, message: logging.getLogger(message.logger).log(
                message.level, "%s", message.line
            ),
            messages.TemplateRendered: lambda _, message: state.plan.spec.prompts.rendered.put(*message),
        }
        """The handler of each type of message."""

    def send_run_state(self, slot: WorkerSlot) -> None:
        """Send a newly ready worker the state of the run that the other workers already know."""
        if self._answered_model_groups:
            slot.send(messages.GroupsAnswered(frozenset(self._answered_model_groups)))
        if self._has_sent_stop:
            slot.send(messages.StopRequest())

    def forward_stop(self) -> None:
        """Send all workers a stop request if the run is stopping, but only once."""
        if self._state.stop.is_stopping and not self._has_sent_stop:
            self._has_sent_stop = True
            for slot in self._slots:
                if slot.is_ready:
                    slot.send(messages.StopRequest())

    def withdraw_server_problems(self, slot: WorkerSlot) -> None:
        """Withdraw the problems with servers that a dead worker has reported."""
        for server in self._reporting_slots:
            self._update_warning(slot, messages.ServerStatus(server, None))

    def _count_answers(self, _: WorkerSlot, message: messages.AnswersCounted) -> None:
        self._state.accounting.count_worker_answers(
            message.group, message.answers, message.repeats, from_cache=message.from_cache
        )
        self._state.accounting.count_new_answers(message.new_answers)
        if message.group not in self._answered_model_groups:
            self._answered_model_groups.add(message.group)
            for slot in self._slots:
                if slot.is_ready:
                    slot.send(messages.GroupsAnswered(frozenset((message.group,))))

    def _update_warning(self, slot: WorkerSlot, message: messages.ServerStatus) -> None:
        """Show a warning about a server while at least one worker reports a problem with the server."""
        reporting_slots = self._reporting_slots.setdefault(message.server, set())
        had_warning = bool(reporting_slots)
        if message.problem is None:
            reporting_slots.discard(slot.number)
        else:
            reporting_slots.add(slot.number)
        if bool(reporting_slots) != had_warning:
            self._state.accounting.warn(message.server, message.problem)
