"""Calls a model group through the provider's Batch API, at half the price, but in hours instead of seconds.

Calls are collected until no more calls come, and then sent together as one file. Games wait for the answers, so a run
needs as many batches as its longest game has turns. The journal records a batch before it is sent, and the batch's id
before the first poll. So a run that was killed finds the batches that it has paid for. A run that is stopping does not
send the collected calls.

If the answer to a batch's creation is lost, the batch may exist. Its metadata contains its intent, a random name that
the journal has recorded. This process or the next one sends its calls again only if several complete listings of the
account's batches do not contain this intent. Uploads cost nothing, so an upload whose answer was lost is repeated.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import IO, Any, Final, TypeVar

import orjson

from runner.base.async_runner import cancel_all
from runner.base.errors import NipRunError, ProviderRefusal, RunError, ServerUnreachable, TransientError
from runner.base.hashing import tagged_hash
from runner.models.fine_tuning_api import SETTLING_LISTINGS
from runner.models.interface import Completion, Request
from runner.models.journal_records import BatchRecord
from runner.models.providers.batch_results import BatchResults
from runner.models.providers.client_errors import (
    is_not_found,
    is_unreadable,
    map_client_error,
    with_time_limit,
    without_secret_cause,
)
from runner.models.providers.http_model import close_client
from runner.models.providers.openai import CLIENT_ERRORS, make_client
from runner.models.providers.openai_body import chat_completions_body
from runner.models.providers.openai_http import FILE, USUAL_FILE_BYTES
from runner.models.providers.paid_objects import list_all, may_have_worked, require_id
from runner.models.retry_policy import TransientPolicy
from runner.models.settings import ModelSettings

ENDPOINT: Final = "/v1/chat/completions"
MAX_LINES = 50_000
"""Maximum number of calls in a batch."""
MAX_BYTES = 190 << 20
"""Maximum size of a batch's file."""
TERMINAL_STATUSES = ("completed", "failed", "expired", "cancelled")
METADATA = "nip_run"
"""Key in a batch's metadata with the intent, which identifies the batch in the journal."""
LISTING_ATTEMPTS = 5
"""Maximum number of attempts to list all batches."""
FAILURES_BEFORE_NOTICE = 2
"""Number of consecutive failures after which the user is notified."""

_ADVICE: Final = "The batch stays at the provider. Run the same command again; you will not pay for the batch twice."

T = TypeVar("T")

log = logging.getLogger("nip_run.batch")

WriteRecord = Callable[[BatchRecord], Awaitable[None]]
"""Writes a record to the run's journal. The record is on disk when the call returns."""


@dataclass
class _Call:
    """A call that waits for its batch."""

    request: Request
    line: bytes
    answer: asyncio.Future[Completion]


@dataclass
class _SentBatch:
    """A batch at the provider."""

    batch_id: str
    is_from_earlier_process: bool = False
    waiting: dict[str, _Call] = field(default_factory=dict)
    """The calls that wait for the batch, by the ids of their lines."""
    results: BatchResults | None = None
    """The results; None until the batch has ended."""
    failure: BaseException | None = None
    """The error that prevented this process from fetching the results, which stay at the provider."""


class _DeletedError(ProviderRefusal):
    """Raised if the provider no longer has a batch or a file."""


def custom_id(request: Request, body: bytes) -> str:
    """Return the id of a call's line. A request of a sample has the same id in every process."""
    return tagged_hash("batch", [request.sample.fields(), body.decode()])[:40]


class BatchModel:
    """Collects calls into batches, and returns their results.

    `write` writes a record to the journal. `earlier_records` are the records of batches in the journal when this
    process started. `before_sending` is called before anything is sent, and raises an error if the run is stopping.
    `waits` limits the time of repeated failures to fetch a batch. `notify` is called with a message about such
    failures, and with None when they end.
    """

    def __init__(
        self,
        settings: ModelSettings,
        group: str,
        write: WriteRecord,
        earlier_records: Iterable[BatchRecord] = (),
        *,
        before_sending: Callable[[], None] = lambda: None,
        waits: TransientPolicy | None = None,
        notify: Callable[[str | None], None] = lambda _: None,
    ) -> None:
        self._settings, self._group, self._write = settings, group, write
        self._before_sending = before_sending
        self._waits, self._notify = waits or TransientPolicy(), notify
        self._client = make_client(settings, group, connections=4)
        self._pending: dict[str, _Call] = {}
        """The calls that are not in a batch yet, by the ids of their lines."""
        self._has_new_call = asyncio.Event()
        self._sender: asyncio.Task[None] | None = None
        """Sends the pending calls."""
        self._poll_tasks: set[asyncio.Task[None]] = set()
        self._earlier_records = [record for record in earlier_records if record.group == group]
        self._search: asyncio.Task[None] | None = None
        """Finds the batches of earlier processes."""
        self._batch_of_line: dict[str, _SentBatch] = {}
        """The batch that contains each line, by the line's id, until a call for the line arrives."""
        self._failure: BaseException | None = None
        """The error that ended the sender, after which no call is accepted."""
        self._all_results: list[BatchResults] = []
        self._uncertain: dict[str, Sequence[str]] = {}
        """The ids of the lines of each batch that may exist although no listing has shown it, by intent."""
        self._jitter = random.Random()

    async def complete(self, request: Request) -> Completion:
        """Return the answer to a call when its batch has ended.

        Raises:
            TransientError: the call failed, or its batch ended without it. It can be sent in another batch.
            ProviderRefusal: the provider refuses the batch.
        """
        if self._search is None or (self._search.done() and self._search.exception() is not None):
            self._search = asyncio.create_task(self._find_earlier())
        await asyncio.shield(self._search)
        if self._failure is not None:
            raise self._failure
        body = chat_completions_body(self._settings, request.messages, request.schema)
        line_id = custom_id(request, body)
        answer: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        line = orjson.dumps(
            {"custom_id": line_id, "method": "POST", "url": ENDPOINT, "body": orjson.loads(body)},
            option=orjson.OPT_APPEND_NEWLINE,
        )
        call = _Call(request, line, answer)
        sent = self._batch_of_line.pop(line_id, None)
        if sent is not None and sent.failure is not None:
            raise sent.failure  # the call is paid for, so it must not be sent in another batch
        if sent is not None and sent.results is None:
            sent.waiting[line_id] = call
        elif sent is None or sent.results is None or self._deliver_results(sent, sent.results, {line_id: call}):
            self._pending[line_id] = call
            self._start_sender()
        return await answer

    async def _send_pending(self) -> None:
        """Send the pending calls when no more calls come, or when they fill a batch."""
        while self._pending:
            self._has_new_call.clear()
            if len(self._pending) < MAX_LINES:
                try:
                    await asyncio.wait_for(self._has_new_call.wait(), self._settings.batch_wait)
                    continue
                except TimeoutError:
                    pass
            calls = self._take_batch()
            try:
                await self._send(calls)
            except BaseException as error:  # noqa: BLE001 - every waiting call must receive the error
                self._fail(calls.values(), error)
                if not isinstance(error, TransientError):
                    self._failure = error
                    self._fail(self._pending.values(), error)
                    self._pending.clear()
                    return

    def _take_batch(self) -> dict[str, _Call]:
        """Remove and return the pending calls that fit into one batch."""
        calls: dict[str, _Call] = {}
        size = 0
        for line_id, call in list(self._pending.items()):
            size += len(call.line)
            if calls and (size > MAX_BYTES or len(calls) >= MAX_LINES):
                break
            calls[line_id] = self._pending.pop(line_id)
        return calls

    async def _send(self, calls: dict[str, _Call]) -> None:
        """Upload a file with a line for each call, create a batch, and start to poll it."""
        self._before_sending()
        await self._remove_sent(calls)
        if not calls:
            return
        intent = uuid.uuid4().hex
        record = BatchRecord(self._group, intent, tuple(calls))
        await self._write(record)
        data = b"".join(call.line for call in calls.values())
        try:
            uploading = self._client.files.create(file=(f"{intent}.jsonl", data), purpose="batch")
            file = require_id(await with_time_limit(self._settings, uploading, len(data)))
        except CLIENT_ERRORS as error:
            raise map_client_error(error, self._settings, self._group) from without_secret_cause(error)
        self._before_sending()  # the upload may have taken minutes, and costs nothing
        creating = self._client.batches.create(
            input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h", metadata={METADATA: intent}
        )
        try:
            batch_id: str = require_id(await with_time_limit(self._settings, creating)).id
        except (*CLIENT_ERRORS, TransientError) as error:
            mapped_error = map_client_error(error, self._settings, self._group)
            batch_ids = {}
            if may_have_worked(error):
                self._uncertain[intent] = record.lines
                batch_ids = await self._find_batch_ids({intent}, SETTLING_LISTINGS)
            if intent not in batch_ids:
                raise mapped_error from without_secret_cause(error)
            del self._uncertain[intent]
            batch_id = batch_ids[intent]
        await self._write(replace(record, batch=batch_id))
        log.info("%s: batch %s with %d calls", self._group, batch_id, len(calls))
        self._start_polling(_SentBatch(batch_id, waiting=calls))

    async def _remove_sent(self, calls: dict[str, _Call]) -> None:
        """Remove the calls that are in an uncertain batch, if a listing now shows that the batch exists."""
        intents = {intent for intent, line_ids in self._uncertain.items() if not calls.keys().isdisjoint(line_ids)}
        for intent, batch_id in (await self._find_batch_ids(intents) if intents else {}).items():
            line_ids = self._uncertain.pop(intent)
            await self._write(BatchRecord(self._group, intent, tuple(line_ids), batch_id))
            sent = _SentBatch(batch_id)
            self._batch_of_line.update(dict.fromkeys(line_ids, sent))
            for unsent in (calls, self._pending):
                for line_id in unsent.keys() & set(line_ids):
                    sent.waiting[line_id] = unsent.pop(line_id)
                    self._batch_of_line.pop(line_id, None)
            self._start_polling(sent)

    def _start_polling(self, sent: _SentBatch) -> None:
        task = asyncio.create_task(self._poll(sent))
        self._poll_tasks.add(task)
        task.add_done_callback(self._poll_tasks.discard)

    async def _poll(self, sent: _SentBatch) -> None:
        """Wait until a batch has ended, and deliver its results or its error to the waiting calls."""
        try:
            await self._finish(sent)
        except Exception as error:  # noqa: BLE001 - any failure must reach the waiting games
            if sent.is_from_earlier_process and isinstance(error, _DeletedError):
                sent.results = BatchResults()
                self._send_again(sent)
            else:
                sent.failure = error
                self._fail(sent.waiting.values(), error)

    async def _finish(self, sent: _SentBatch) -> None:
        """Wait until a batch has ended, and deliver its results to the waiting calls.

        Calls without a result fail or, in a batch of an earlier process, are sent again.
        """
        batch = await self._wait_until_ended(sent.batch_id)
        sent.results = await self._fetch_results(batch)
        if batch.status == "failed" and not sent.results:
            self._handle_refused(sent, batch)
            return
        missing = self._deliver_results(sent, sent.results, sent.waiting)
        if sent.is_from_earlier_process:
            sent.waiting = missing
            self._send_again(sent)
        else:
            error = TransientError(f"batch {sent.batch_id} ended ({batch.status}) without this call", status=503)
            self._fail(missing.values(), error)

    async def _wait_until_ended(self, batch_id: str) -> Any:
        """Return a batch when it has ended."""
        while True:
            batch = await self._fetch(lambda: with_time_limit(self._settings, self._client.batches.retrieve(batch_id)))
            if getattr(batch, "status", None) in TERMINAL_STATUSES:
                return batch
            await asyncio.sleep(self._settings.batch_poll)

    async def _fetch(self, get: Callable[[], Awaitable[T]]) -> T:
        """Fetch the status or a file of a paid batch with `get`, retrying failures within limits.

        Raises:
            ServerUnreachable: all attempts within the time limit failed.
            RunError: the answer cannot be read, or this machine cannot store it.
            _DeletedError: the provider no longer has the batch or file.
        """
        failures, first_failure, is_notified = 0, 0.0, False
        while True:
            try:
                result = await get()
            except CLIENT_ERRORS as error:
                failures += 1
                first_failure = first_failure if failures > 1 else time.monotonic()
                mapped_error = map_client_error(error, self._settings, self._group)
                final_error = self._find_final_error(error, mapped_error, failures, time.monotonic() - first_failure)
                if final_error is not None:
                    raise final_error from without_secret_cause(error)
                log.info("%s: %s", self._group, mapped_error)
                if not is_notified and failures >= FAILURES_BEFORE_NOTICE:
                    is_notified = True
                    self._notify(f"{mapped_error} ({failures} times in a row); retrying")
                await asyncio.sleep(self._settings.batch_poll)
            else:
                if is_notified:
                    self._notify(None)
                return result

    def _find_final_error(
        self, error: Exception, mapped_error: NipRunError, failures: int, seconds: float
    ) -> NipRunError | None:
        """Return the error that ends the attempts to fetch something; None if another attempt is allowed.

        `failures` attempts have failed, the first one `seconds` ago.
        """
        if is_not_found(error):
            return _DeletedError(str(mapped_error))
        if not isinstance(mapped_error, TransientError):
            return mapped_error
        if is_unreadable(error):
            has_attempts = failures < min(self._waits.attempts, mapped_error.attempts or self._waits.attempts)
            return None if has_attempts else RunError(f"{mapped_error}\n{_ADVICE}")
        has_time = seconds + self._settings.batch_poll <= self._waits.total_seconds
        return None if has_time else ServerUnreachable(f"{mapped_error}\n{_ADVICE}")

    def _handle_refused(self, sent: _SentBatch, batch: Any) -> None:
        """Send a refused batch of an earlier process again. A refused batch of this process stops the run."""
        if sent.is_from_earlier_process:
            self._send_again(sent)  # the cause may have been fixed since
            return
        messages = (str(item.message) for item in (batch.errors.data if batch.errors else None) or ())
        reason = "; ".join(messages) or "no reason given"
        refusal = ProviderRefusal(
            f"models.{self._group}: the provider refused batch {sent.batch_id}: {reason}. Fix the cause, or set "
            f"models.{self._group}.batch=false"
        )
        self._fail(sent.waiting.values(), refusal)

    def _send_again(self, sent: _SentBatch) -> None:
        self._pending.update(sent.waiting)
        sent.waiting = {}
        self._start_sender()

    def _start_sender(self) -> None:
        self._has_new_call.set()
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._send_pending())

    async def _fetch_results(self, batch: Any) -> BatchResults:
        """Return the results in both files of a batch. An expired batch also has results, and they are billed."""
        results = BatchResults()
        self._all_results.append(results)
        for file_id in (getattr(batch, "output_file_id", None), getattr(batch, "error_file_id", None)):
            if file_id:
                results.add(await self._fetch(partial(self._fetch_file, file_id)))
        return results

    async def _fetch_file(self, file_id: str) -> IO[bytes]:
        content = await with_time_limit(self._settings, self._client.files.content(file_id), USUAL_FILE_BYTES)
        file: IO[bytes] = content.response.extensions[FILE]
        return file

    def _deliver_results(self, sent: _SentBatch, results: BatchResults, calls: dict[str, _Call]) -> dict[str, _Call]:
        """Deliver the results to these calls, answers before errors. Return the calls without a result.

        A refusal in a batch of an earlier process does not count as a result, because its cause may have been fixed.
        """
        missing, failed = {}, []
        for line_id, call in calls.items():
            outcome = results.outcome_of(line_id, call.request, self._settings, self._group)
            if outcome is None or (sent.is_from_earlier_process and isinstance(outcome, ProviderRefusal)):
                missing[line_id] = call
            elif isinstance(outcome, NipRunError):
                failed.append((call, outcome))
            elif not call.answer.done():
                call.answer.set_result(outcome)
        for call, error in failed:
            self._fail([call], error)
        return missing

    def _fail(self, calls: Iterable[_Call], error: BaseException) -> None:
        for call in calls:
            if not call.answer.done():
                call.answer.set_exception(error)

    async def _find_earlier(self) -> None:
        """Start to poll the batches of earlier processes, including batches whose id could not be recorded."""
        lines = {record.intent: record.lines for record in self._earlier_records}
        batch_ids = {record.intent: record.batch for record in self._earlier_records if record.batch is not None}
        unknown = lines.keys() - batch_ids.keys()
        batch_ids.update(await self._find_batch_ids(unknown, SETTLING_LISTINGS) if unknown else {})
        self._uncertain.update((intent, lines[intent]) for intent in unknown - batch_ids.keys())
        for intent, line_ids in lines.items():
            if intent in batch_ids:
                sent = _SentBatch(batch_ids[intent], is_from_earlier_process=True)
                self._batch_of_line.update(dict.fromkeys(line_ids, sent))
                self._start_polling(sent)

    async def _find_batch_ids(self, intents: set[str], listings: int = 1) -> dict[str, str]:
        """Return the ids of the batches with these intents in their metadata, by intent.

        If a batch is not found, the batches are listed again, up to `listings` times.
        """
        batch_ids: dict[str, str] = {}
        for listing in range(1, listings + 1):
            for batch in (await self._list_batches()).values():
                metadata = getattr(batch, "metadata", None)
                intent = metadata.get(METADATA) if isinstance(metadata, dict) else None
                if intent in intents:
                    batch_ids.setdefault(intent, batch.id)
            if batch_ids.keys() == intents:
                break
            if listing < listings:
                await asyncio.sleep(self._waits.wait(listing, self._jitter))
        return batch_ids

    async def _list_batches(self) -> dict[str, Any]:
        """Return all batches of the account by id. Failed listings are repeated.

        Raises:
            TransientError: no listing was complete.
        """
        attempt = 0
        while True:
            attempt += 1
            try:
                return await with_time_limit(self._settings, list_all(self._client.batches.list(limit=100)))
            except (*CLIENT_ERRORS, TransientError) as error:
                mapped_error = map_client_error(error, self._settings, self._group)
                if not isinstance(mapped_error, TransientError) or attempt == LISTING_ATTEMPTS:
                    raise mapped_error from without_secret_cause(error)
                await asyncio.sleep(self._settings.batch_poll)

    async def close(self) -> None:
        """Stop waiting for batches. They continue at the provider, and the next process finds them."""
        await cancel_all([*self._poll_tasks, *(task for task in (self._sender, self._search) if task is not None)])
        for results in self._all_results:
            results.close()
        await close_client(self._client)
