"""The connection to an MLflow tracking server: MLflow's own client, and its errors as ours."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from runner.base.errors import NipRunError, ProviderRefusal, RunError, ServerUnreachable, UsageError
from runner.base.redaction import redacted
from runner.base.text import in_one_line, shortened

if TYPE_CHECKING:
    from mlflow import MlflowClient

URI, EXPERIMENT = "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"
DEFAULT_EXPERIMENT = "nip-run"

_DEFAULTS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",  # its client would tell its makers of each use
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "4",  # seven, doubling to two minutes, for each request are its own
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "60",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # what stands there is ours, and may be JSON
}
"""What MLflow's client reads of the environment, where nothing is said there."""

IS_IT = "is it an MLflow tracking server, of version 3?"
_NO_MLFLOW = "was not in a valid JSON format"
"""What its client says of an answer that is a page of another program."""


def tracking_uri(given: str | None) -> str:
    """Where to send to: what is given, else what the environment names.

    Raises:
        UsageError: nothing does, or it is no server.
    """
    uri = given or os.environ.get(URI, "")
    if not uri:
        raise UsageError(
            f"--format mlflow sends to a tracking server; name it by --tracking-uri URI or {URI} (one of your own: "
            "mlflow server --backend-store-uri sqlite:///mlflow.db, then --tracking-uri http://127.0.0.1:5000)"
        )
    try:
        parts = urlsplit(uri)
        is_address = uri == "databricks" or bool(parts.hostname and parts.port != 0)
    except ValueError as error:
        raise UsageError(f"{redacted(uri)} is not the address of a tracking server: {error}") from error
    if parts.scheme not in ("http", "https", "databricks") and uri != "databricks":
        raise UsageError(
            f"{redacted(uri)} is no tracking server; it begins with http:// or https://. A folder or a database is "
            "served by `mlflow server --backend-store-uri URI`"
        )
    if "@" in parts.netloc:
        raise UsageError(
            "the tracking URI has a password in it; leave that out, and set MLFLOW_TRACKING_USERNAME and "
            "MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
        )
    if not is_address or parts.query or parts.fragment:
        raise UsageError(
            f"{redacted(uri)} is not the address of a tracking server; that is its beginning alone, such as "
            "http://127.0.0.1:5000, without the ? and # of a page"
        )
    return uri.rstrip("/")


def connect(uri: str) -> MlflowClient:
    """A client of a server, which has not been asked anything yet.

    Raises:
        UsageError: the package is not installed.
    """
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    try:
        from mlflow import MlflowClient
    except ImportError as error:
        raise UsageError(
            f"--format mlflow needs the package mlflow ({error}); pip install 'nip-run[mlflow]'"
        ) from error
    return MlflowClient(tracking_uri=uri)


@contextmanager
def errors_of(uri: str, what: str) -> Iterator[None]:
    """Have MLflow's errors come out as ours; `what` is what was being done.

    Raises:
        ServerUnreachable: no answer came, after some attempts.
        ProviderRefusal: the server refuses whoever asks.
        RunError: it answers with an error.
    """
    from mlflow.exceptions import MlflowException

    try:
        yield
    except (MlflowException, OSError) as error:  # those of requests are of OSError
        raise _ours(error, uri, what) from error


def _ours(error: Exception, uri: str, what: str) -> NipRunError:
    said = shortened(in_one_line(redacted(str(error))), 300)
    if isinstance(error, OSError) and error.filename is not None:
        return RunError(f"cannot read {error.filename}: {error.strerror}")
    status = _status(error)
    again = "the same command goes on where it stopped, and sends nothing twice"
    if status in (401, 403):
        return ProviderRefusal(
            f"{uri} refuses (HTTP {status}) to {what}: {said}; set MLFLOW_TRACKING_USERNAME and "
            "MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, of one who may"
        )
    if status == 404 or (status is None and _NO_MLFLOW in str(error)):
        return RunError(f"{uri} cannot {what}: {said}; {IS_IT}")
    if status is None:
        return ServerUnreachable(f"{uri} gives no answer to {what}: {said}; {again}")
    if status in (408, 429) or status >= 500:
        return ServerUnreachable(f"{uri} is not able to {what} (HTTP {status}): {said}; {again}")
    return RunError(f"{uri} cannot {what}: {said}; {again}")


def _status(error: Any) -> int | None:
    """The HTTP status of an answer; None where none came.

    Of an answer that is no JSON, MLflow has the number in its words alone.
    """
    from mlflow.exceptions import RestException

    if isinstance(error, RestException):
        return int(error.get_http_status_code())
    response = getattr(error, "response", None)
    if response is not None:
        return int(response.status_code)
    words = str(error)
    for marker in ("failed with error code ", "error code ", "too many "):
        _, found, rest = words.partition(marker)
        if found and rest[:3].isdigit():
            return int(rest[:3])
    return None
