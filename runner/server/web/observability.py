"""The log and the metrics of requests. Neither contains tokens or query strings.

`RequestLog` is the outermost middleware. It adds to `RequestMetrics`, which `/metrics` shows.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runner.server.web.callers import caller_of, untrusted_peer

LOG = logging.getLogger("nip_run.server")
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
"""Upper bounds of the histogram's buckets, in seconds."""
_STANDARD_FIELDS = frozenset((*vars(logging.makeLogRecord({})), "color_message"))
"""Fields of every log record; `color_message` is uvicorn's. All other fields of a record come from `extra`."""
CLIENT_CLOSED = 499
"""Logged status of a request whose client disconnected before the response."""
_UNLOGGED_PATHS = ("/healthz", "/readyz", "/metrics")
_TOKEN_PATTERN = re.compile(r"(nip_[a-z0-9]{12}_)[A-Za-z0-9_-]+")
"""A token in a log message, for example because a client put its token into a path by mistake."""


class JsonLines(logging.Formatter):
    """Formats log records as lines of ASCII JSON, and replaces the secret part of each token."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "at": round(record.created, 3), "level": record.levelname.lower(), "log": record.name,
            "message": record.getMessage(),
        }  # fmt: skip
        entry |= {name: value for name, value in vars(record).items() if name not in _STANDARD_FIELDS}
        if record.exc_info:
            entry["trace"] = self.formatException(record.exc_info)
        return _TOKEN_PATTERN.sub(r"\1[secret removed]", json.dumps(entry, ensure_ascii=True, default=str))


def log_to_stderr() -> None:
    """Make the server and uvicorn log JSON lines to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name, level in (("nip_run", logging.INFO), ("uvicorn", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)


class RequestMetrics:
    """Metrics of all requests since the server started."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, int]] = Counter()
        self.bucket_counts: Counter[float] = Counter()
        """For each bound in `BUCKETS`, the number of requests that took at most that many seconds."""
        self.sum_seconds = 0.0
        self.sent_bytes = self.received_bytes = self.open_requests = 0
        self.started_at = time.time()

    def add(self, method: str, route: str, status: int, seconds: float) -> None:
        self.requests[method, route, status] += 1
        self.sum_seconds += seconds
        for bound in BUCKETS:
            self.bucket_counts[bound] += seconds <= bound

    def lines(self) -> Iterator[str]:
        """Yield the metrics in Prometheus's text format.

        Routes are path templates such as `/board/{page}`, so clients cannot create metrics by requesting other paths.
        `began_seconds` is the Unix time when the server started.
        """
        yield "# TYPE nip_run_requests_total counter"
        for (method, route, status), count in sorted(self.requests.items()):
            yield f'nip_run_requests_total{{method="{method}",route="{route}",status="{status}"}} {count}'
        yield "# TYPE nip_run_request_seconds histogram"
        total = sum(self.requests.values())
        yield from (f'nip_run_request_seconds_bucket{{le="{bound}"}} {self.bucket_counts[bound]}' for bound in BUCKETS)
        yield f'nip_run_request_seconds_bucket{{le="+Inf"}} {total}'
        yield f"nip_run_request_seconds_sum {self.sum_seconds:.6f}"
        yield f"nip_run_request_seconds_count {total}"
        for name, kind, value in (
            ("requests_open", "gauge", self.open_requests), ("sent_bytes_total", "counter", self.sent_bytes),
            ("received_bytes_total", "counter", self.received_bytes),
            ("began_seconds", "gauge", round(self.started_at, 3)),
        ):  # fmt: skip
            yield f"# TYPE nip_run_{name} {kind}"
            yield f"nip_run_{name} {value}"


_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
"""Methods that the metrics count separately. All others count as `other`, because clients can invent methods."""


class RequestLog:
    """Middleware that counts and logs each request after its response."""

    def __init__(self, app: ASGIApp, metrics: RequestMetrics, trusted_proxies: tuple[str, ...]) -> None:
        self._app, self._metrics, self._trusted_proxies = app, metrics, trusted_proxies
        self._has_warned = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        self._warn_of_unknown_proxy(scope)
        metrics, start = self._metrics, time.monotonic()
        sent_bytes = received_bytes = status = 0

        async def count_received() -> Message:
            nonlocal received_bytes
            message = await receive()
            received_bytes += len(message.get("body", b""))
            return message

        async def count_sent(message: Message) -> None:
            nonlocal sent_bytes, status
            status = message.get("status", status)
            sent_bytes += len(message.get("body", b""))
            await send(message)

        scope.setdefault("state", {})
        metrics.open_requests += 1
        try:
            await self._app(scope, count_received, count_sent)
        finally:
            metrics.open_requests -= 1
            metrics.sent_bytes += sent_bytes
            metrics.received_bytes += received_bytes
            seconds = time.monotonic() - start
            self._record(scope, status or CLIENT_CLOSED, seconds, received_bytes=received_bytes, sent_bytes=sent_bytes)

    def _record(self, scope: Scope, status: int, seconds: float, *, received_bytes: int, sent_bytes: int) -> None:
        """Count and log a request that has ended."""
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._metrics.add(method, getattr(scope.get("route"), "path", "none"), status, seconds)
        if scope["path"] not in _UNLOGGED_PATHS or status >= 400:
            fields = {
                "method": method, "path": scope["path"], "status": status, "seconds": round(seconds, 4),
                "received": received_bytes, "sent": sent_bytes, "from": caller_of(scope, self._trusted_proxies),
                "account": scope["state"].get("account", ""),
            }  # fmt: skip
            LOG.info("request", extra=fields)

    def _warn_of_unknown_proxy(self, scope: Scope) -> None:
        """Warn once if requests come through a proxy that is missing in `--behind-proxy`.

        The rate limits treat all clients of such a proxy as one caller. The log fields `named`
        (the trusted proxies) and `error` (a hint) have the names of earlier versions.
        """
        peer = None if self._has_warned else untrusted_peer(scope, self._trusted_proxies)
        if peer is not None:
            self._has_warned = True
            hint = f"ignored X-Forwarded-For; if {peer} is your proxy, start `nip-run serve` with --behind-proxy {peer}"
            LOG.warning("unknown proxy", extra={"from": peer, "named": ", ".join(self._trusted_proxies), "error": hint})
