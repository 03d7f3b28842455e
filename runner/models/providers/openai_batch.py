"""A model group through the provider's Batch API: half the price, hours instead of seconds.

Calls gather until no more come, then go out together as one file; games wait at their step meanwhile, so a run
takes as many batches as its longest game has turns. A batch's id is in the journal before the first look at it,
and what will be sent is there before it is sent, so a killed run finds the batches it has paid for. A run that is
asked to stop sends none of what has gathered.

If the answer to a creation is lost, the batch may exist. Before its lines are sent again, in this process or the next,
complete listings of the account's batches must lack it. Uploads cost nothing: one whose answer was lost is repeated.
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
    within,
    without_secret_cause,
)
from runner.models.providers.http_model import close_client
from runner.models.providers.openai import CLIENT_ERRORS, make_client
from runner.models.providers.openai_body import chat_completions_body
from runner.models.providers.openai_http import FILE, USUAL_FILE_BYTES
from runner.models.providers.paid_objects import list_all, may_have_worked, with_id
from runner.models.retry_policy import TransientPolicy
from runner.models.settings import ModelSettings

ENDPOINT: Final = "/v1/chat/completions"
MAX_LINES = 50_000
MAX_BYTES = 190 << 20
TERMINAL_STATUSES = ("completed", "failed", "expired", "cancelled")
METADATA = "nip_run"
FIND_ATTEMPTS = 5
FAILURES_TOLD = 2
"""So many failures in a row are told to the user."""

_KEPT: Final = (
    "The batch and its results are at the provider; run the same command again, and it is not paid for twice."
)

T = TypeVar("T")

log = logging.getLogger("nip_run.batch")

WriteRecord = Callable[[BatchRecord], Awaitable[None]]
"""Writes a record to the run's journal; it is on disk when this returns."""


@dataclass
class _Waiting:
    """One call that waits for its batch."""

    request: Request
    line: bytes
    answer: asyncio.Future[Completion]


@dataclass
class _Sent:
    """One batch under way: its id, and who waits for which of its lines."""

    batch_id: str
    from_earlier_process: bool = False
    waiting: dict[str, _Waiting] = field(default_factory=dict)
    results: BatchResults | None = None
    failure: BaseException | None = None
    """Why this process does not take its results, which are at the provider all the same."""


class _ForgottenError(ProviderRefusal):
    """The provider has no such batch, or no such file, any more."""


def custom_id(request: Request, body: bytes) -> str:
    """A line's name: the same for the same sample's same request, in this process and the next."""
    return tagged_hash("batch", [request.sample.fields(), body.decode()])[:40]


class BatchModel:
    """Gathers calls into batches and hands out their results.

    `before_sending` is asked before anything is sent, and raises where nothing may be any more. `waits` bounds how long
    a server is asked for a batch that it does not give; `tell` is told meanwhile, and None once it does.
    """

    def __init__(
        self,
        settings: ModelSettings,
        group: str,
        write: WriteRecord,
        earlier: Iterable[BatchRecord] = (),
        *,
        before_sending: Callable[[], None] = lambda: None,
        waits: TransientPolicy | None = None,
        tell: Callable[[str | None], None] = lambda _: None,
    ) -> None:
        self._settings, self._group, self._write = settings, group, write
        self._before_sending = before_sending
        self._waits, self._tell = waits or TransientPolicy(), tell
        self._client = make_client(settings, group, 4)
        self._pending: dict[str, _Waiting] = {}
        self._moved = asyncio.Event()
        self._gathering: asyncio.Task[None] | None = None
        self._polling: set[asyncio.Task[None]] = set()
        self._earlier = [record for record in earlier if record.group == group]
        self._found: asyncio.Task[None] | None = None
        self._lines: dict[str, _Sent] = {}
        self._failure: BaseException | None = None
        self._opened: list[BatchResults] = []
        self._uncertain: dict[str, Sequence[str]] = {}
        """The lines of batches that may exist although no listing had them, by intent."""
        self._jitter = random.Random()

    async def complete(self, request: Request) -> Completion:
        """Wait for this call's line in some batch.

        Raises:
            TransientError: the line failed, or its batch ended without it; it can go into another.
            ProviderRefusal: the provider refuses the batch.
        """
        if self._found is None or (self._found.done() and self._found.exception() is not None):
            self._found = asyncio.create_task(self._find_earlier())
        await asyncio.shield(self._found)
        if self._failure is not None:
            raise self._failure
        body = chat_completions_body(self._settings, request.messages)
        name = custom_id(request, body)
        answer: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        line = orjson.dumps(
            {"custom_id": name, "method": "POST", "url": ENDPOINT, "body": orjson.loads(body)},
            option=orjson.OPT_APPEND_NEWLINE,
        )
        waiting = _Waiting(request, line, answer)
        sent = self._lines.pop(name, None)
        if sent is not None and sent.failure is not None:
            raise sent.failure  # and never into another batch: it is paid for
        if sent is not None and sent.results is None:
            sent.waiting[name] = waiting
        elif sent is None or sent.results is None or self._missing_in(sent, sent.results, {name: waiting}):
            self._pending[name] = waiting
            self._start_gathering()
        return await answer

    async def _gather(self) -> None:
        """Send what has gathered once no more comes, or once it fills a batch."""
        while self._pending:
            self._moved.clear()
            full = len(self._pending) >= MAX_LINES
            if not full:
                try:
                    await asyncio.wait_for(self._moved.wait(), self._settings.batch_wait)
                    continue
                except TimeoutError:
                    pass
            lines = self._take()
            try:
                await self._send(lines)
            except BaseException as error:  # noqa: BLE001 - whatever it is, those who wait must hear of it
                self._fail(lines.values(), error)
                if not isinstance(error, TransientError):
                    self._failure = error
                    self._fail(self._pending.values(), error)
                    self._pending.clear()
                    return

    def _take(self) -> dict[str, _Waiting]:
        lines: dict[str, _Waiting] = {}
        size = 0
        for name, waiting in list(self._pending.items()):
            size += len(waiting.line)
            if lines and (size > MAX_BYTES or len(lines) >= MAX_LINES):
                break
            lines[name] = self._pending.pop(name)
        return lines

    async def _send(self, lines: dict[str, _Waiting]) -> None:
        self._before_sending()
        await self._take_found(lines)
        if not lines:
            return
        intent = uuid.uuid4().hex
        record = BatchRecord(self._group, intent, tuple(lines))
        await self._write(record)
        data = b"".join(waiting.line for waiting in lines.values())
        try:
            uploading = self._client.files.create(file=(f"{intent}.jsonl", data), purpose="batch")
            file = with_id(await within(self._settings, uploading, len(data)))
        except CLIENT_ERRORS as error:
            raise map_client_error(error, self._settings, self._group) from without_secret_cause(error)
        self._before_sending()  # the upload may have taken minutes, and costs nothing yet
        creating = self._client.batches.create(
            input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h", metadata={METADATA: intent}
        )
        try:
            batch_id: str = with_id(await within(self._settings, creating)).id
        except (*CLIENT_ERRORS, TransientError) as error:
            is_ours = isinstance(error, TransientError)
            ours = error if is_ours else map_client_error(error, self._settings, self._group)
            found = {}
            if may_have_worked(error):
                self._uncertain[intent] = record.lines
                found = await self._find({intent}, SETTLING_LISTINGS)
            if intent not in found:
                raise ours from without_secret_cause(error)
            del self._uncertain[intent]
            batch_id = found[intent]
        await self._write(replace(record, batch=batch_id))
        log.info("%s: batch %s with %d calls", self._group, batch_id, len(lines))
        self._watch(_Sent(batch_id, waiting=lines))

    async def _take_found(self, lines: dict[str, _Waiting]) -> None:
        """Take lines out that are in a batch whose creation was not answered, once a listing has that batch."""
        intents = {intent for intent, names in self._uncertain.items() if not lines.keys().isdisjoint(names)}
        for intent, batch_id in (await self._find(intents) if intents else {}).items():
            names = self._uncertain.pop(intent)
            await self._write(BatchRecord(self._group, intent, tuple(names), batch_id))
            sent = _Sent(batch_id)
            self._lines.update(dict.fromkeys(names, sent))
            for waiting in (lines, self._pending):
                for name in waiting.keys() & set(names):
                    sent.waiting[name] = waiting.pop(name)
                    self._lines.pop(name, None)
            self._watch(sent)

    def _watch(self, sent: _Sent) -> None:
        task = asyncio.create_task(self._poll(sent))
        self._polling.add(task)
        task.add_done_callback(self._polling.discard)

    async def _poll(self, sent: _Sent) -> None:
        """Wait for a batch to end, then hand out its lines."""
        try:
            await self._end(sent)
        except Exception as error:  # noqa: BLE001 - a poll that fails in any way must not leave games waiting
            if sent.from_earlier_process and isinstance(error, _ForgottenError):
                sent.results = BatchResults()
                self._send_again(sent)
            else:
                sent.failure = error
                self._fail(sent.waiting.values(), error)

    async def _end(self, sent: _Sent) -> None:
        batch = await self._ended(sent.batch_id)
        sent.results = await self._results(batch)
        if batch.status == "failed" and not sent.results:
            self._batch_refused(sent, batch)
            return
        missing = self._missing_in(sent, sent.results, sent.waiting)
        if sent.from_earlier_process:
            sent.waiting = missing
            self._send_again(sent)
        else:
            gone = TransientError(f"batch {sent.batch_id} ended ({batch.status}) without this call", status=503)
            self._fail(missing.values(), gone)

    async def _ended(self, batch_id: str) -> Any:
        """The batch once it has ended."""
        while True:
            batch = await self._got(lambda: within(self._settings, self._client.batches.retrieve(batch_id)))
            if getattr(batch, "status", None) in TERMINAL_STATUSES:
                return batch
            await asyncio.sleep(self._settings.batch_poll)

    async def _got(self, get: Callable[[], Awaitable[T]]) -> T:
        """What the server has of a batch that is paid for, tried again in bounds.

        Raises:
            ServerUnreachable: the server gave none in all that time.
            RunError: it gave what cannot be taken, or this machine cannot take it.
            _ForgottenError: it has it no more.
        """
        failures, began, told = 0, 0.0, False
        while True:
            try:
                got = await get()
            except CLIENT_ERRORS as error:
                ours = map_client_error(error, self._settings, self._group)
                if is_not_found(error):
                    raise _ForgottenError(str(ours)) from without_secret_cause(error)
                if not isinstance(ours, TransientError):
                    raise ours from without_secret_cause(error)
                failures += 1
                began = began if failures > 1 else time.monotonic()
                if is_unreadable(error):
                    if failures >= min(self._waits.attempts, ours.attempts or self._waits.attempts):
                        raise RunError(f"{ours}\n{_KEPT}") from without_secret_cause(error)
                elif time.monotonic() - began + self._settings.batch_poll > self._waits.total_seconds:
                    raise ServerUnreachable(f"{ours}\n{_KEPT}") from without_secret_cause(error)
                log.info("%s: %s", self._group, ours)
                if not told and failures >= FAILURES_TOLD:
                    told = True
                    self._tell(f"{ours}; {failures} times in a row, and trying on")
                await asyncio.sleep(self._settings.batch_poll)
            else:
                if told:
                    self._tell(None)
                return got

    def _batch_refused(self, sent: _Sent, batch: Any) -> None:
        """Send a refused batch of an earlier process again; one of this process stops the run."""
        if sent.from_earlier_process:
            self._send_again(sent)  # whatever was wrong with it, this process may have mended
            return
        messages = (str(item.message) for item in (batch.errors.data if batch.errors else None) or ())
        why = "; ".join(messages) or "no reason given"
        refusal = ProviderRefusal(f"{self._group}: the provider refused batch {sent.batch_id}: {why}")
        self._fail(sent.waiting.values(), refusal)

    def _send_again(self, sent: _Sent) -> None:
        self._pending.update(sent.waiting)
        sent.waiting = {}
        self._start_gathering()

    def _start_gathering(self) -> None:
        self._moved.set()
        if self._gathering is None or self._gathering.done():
            self._gathering = asyncio.create_task(self._gather())

    async def _results(self, batch: Any) -> BatchResults:
        """The lines of both files, by name: finished lines of an expired batch count, and are charged."""
        results = BatchResults()
        self._opened.append(results)
        for file_id in (getattr(batch, "output_file_id", None), getattr(batch, "error_file_id", None)):
            if file_id:
                results.add(await self._got(partial(self._content, file_id)))
        return results

    async def _content(self, file_id: str) -> IO[bytes]:
        found = await within(self._settings, self._client.files.content(file_id), USUAL_FILE_BYTES)
        file: IO[bytes] = found.response.extensions[FILE]
        return file

    def _missing_in(self, sent: _Sent, results: BatchResults, lines: dict[str, _Waiting]) -> dict[str, _Waiting]:
        """Hand out what became of lines, the answers first; the lines of which nothing did.

        So it is with one that was refused to an earlier process: whatever was wrong, this process may have mended.
        """
        missing, failed = {}, []
        for name, waiting in lines.items():
            end = results.end_of(name, waiting.request, self._settings, self._group)
            if end is None or (sent.from_earlier_process and isinstance(end, ProviderRefusal)):
                missing[name] = waiting
            elif isinstance(end, NipRunError):
                failed.append((waiting, end))
            elif not waiting.answer.done():
                waiting.answer.set_result(end)
        for waiting, error in failed:
            self._fail([waiting], error)
        return missing

    def _fail(self, waiting: Iterable[_Waiting], error: BaseException) -> None:
        for one in waiting:
            if not one.answer.done():
                one.answer.set_exception(error)

    async def _find_earlier(self) -> None:
        """Take up the batches that an earlier process sent, those too whose id it did not live to write down."""
        lines = {record.intent: record.lines for record in self._earlier}
        batches = {record.intent: record.batch for record in self._earlier if record.batch is not None}
        unknown = lines.keys() - batches.keys()
        batches.update(await self._find(unknown, SETTLING_LISTINGS) if unknown else {})
        self._uncertain.update((intent, lines[intent]) for intent in unknown - batches.keys())
        for intent, names in lines.items():
            if intent in batches:
                sent = _Sent(batches[intent], from_earlier_process=True)
                self._lines.update(dict.fromkeys(names, sent))
                self._watch(sent)

    async def _find(self, intents: set[str], listings: int = 1) -> dict[str, str]:
        """Return the ids of the batches with these intents in their metadata; look at so many listings for all."""
        found: dict[str, str] = {}
        for listing in range(1, listings + 1):
            for batch in (await self._list_batches()).values():
                metadata = getattr(batch, "metadata", None)
                intent = metadata.get(METADATA) if isinstance(metadata, dict) else None
                if intent in intents:
                    found.setdefault(intent, batch.id)
            if found.keys() == intents:
                break
            if listing < listings:
                await asyncio.sleep(self._waits.wait(listing, self._jitter))
        return found

    async def _list_batches(self) -> dict[str, Any]:
        """Return all batches of the account by id; a listing that fails is repeated.

        Raises:
            TransientError: no listing was complete.
        """
        attempt = 0
        while True:
            attempt += 1
            try:
                return await within(self._settings, list_all(self._client.batches.list(limit=100)))
            except (*CLIENT_ERRORS, TransientError) as error:
                is_ours = isinstance(error, TransientError)
                ours = error if is_ours else map_client_error(error, self._settings, self._group)
                if not isinstance(ours, TransientError) or attempt == FIND_ATTEMPTS:
                    raise ours from without_secret_cause(error)
                await asyncio.sleep(self._settings.batch_poll)

    async def close(self) -> None:
        """Stop waiting; the batches go on at the provider, and the next process finds them."""
        await cancel_all([*self._polling, *(task for task in (self._gathering, self._found) if task is not None)])
        for results in self._opened:
            results.close()
        await close_client(self._client)
