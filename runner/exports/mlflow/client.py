"""The connection to an MLflow tracking server, through MLflow's own client. MLflow's errors become nip-run's errors."""

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

URI_VARIABLE, EXPERIMENT_VARIABLE = "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"
DEFAULT_EXPERIMENT = "nip-run"

_DEFAULT_VARIABLES = {
    "MLFLOW_DISABLE_TELEMETRY": "true",  # otherwise the client reports its use to MLflow's developers
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "4",  # MLflow's default is 7 retries with waits of up to two minutes
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "60",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # nip-run's own output may be JSON
}
"""Environment variables of MLflow's client. The exporter sets those that the user has not set."""

SERVER_HINT = "check that --tracking-uri names a tracking server of MLflow 3"
_NO_MLFLOW = "was not in a valid JSON format"
"""Part of MLflow's message if an answer is not JSON, such as a web page of another program."""


def tracking_uri(argument: str | None) -> str:
    """Return the URI of the server, from the argument or the environment.

    Raises:
        UsageError: neither names a server, or the URI is invalid.
    """
    uri = argument or os.environ.get(URI_VARIABLE, "")
    if not uri:
        raise UsageError(
            f"--format mlflow needs a tracking server: set --tracking-uri URI or {URI_VARIABLE} (to run your own: "
            "mlflow server --backend-store-uri sqlite:///mlflow.db, then --tracking-uri http://127.0.0.1:5000)"
        )
    try:
        parts = urlsplit(uri)
        is_address = uri == "databricks" or bool(parts.hostname and parts.port != 0)
    except ValueError as error:
        raise UsageError(
            f"{redacted(uri)} is not the address of a tracking server: {error}; write http://HOST:PORT"
        ) from error
    if parts.scheme not in ("http", "https", "databricks") and uri != "databricks":
        raise UsageError(
            f"{redacted(uri)} is not a tracking server; its URI must begin with http:// or https://. To serve a folder "
            "or a database, run `mlflow server --backend-store-uri URI`"
        )
    if "@" in parts.netloc:
        raise UsageError(
            "the tracking URI contains a password; remove it, and set MLFLOW_TRACKING_USERNAME and "
            "MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
        )
    if not is_address or parts.query or parts.fragment:
        raise UsageError(
            f"{redacted(uri)} is not the address of a tracking server; write an address such as http://127.0.0.1:5000, "
            "without the ? and # of a page"
        )
    return uri.rstrip("/")


def connect(uri: str) -> MlflowClient:
    """Create a client of a server, without contacting the server yet.

    Raises:
        UsageError: the package is not installed.
    """
    for name, value in _DEFAULT_VARIABLES.items():
        os.environ.setdefault(name, value)
    try:
        from mlflow import MlflowClient
    except ImportError as error:
        raise UsageError(
            f"--format mlflow needs the package mlflow ({error}); pip install 'nip-run[mlflow]'"
        ) from error
    return MlflowClient(tracking_uri=uri)


@contextmanager
def convert_errors(uri: str, action: str) -> Iterator[None]:
    """Convert MLflow's errors to nip-run's; `action` is a verb phrase for messages, such as "open the experiment".

    Raises:
        ServerUnreachable: the server did not answer after several attempts.
        ProviderRefusal: the server refuses the credentials.
        RunError: the server answered with another error.
    """
    from mlflow.exceptions import MlflowException

    try:
        yield
    except (MlflowException, OSError) as error:  # the errors of requests are subclasses of OSError
        raise _convert_error(error, uri, action) from error


def _convert_error(error: Exception, uri: str, action: str) -> NipRunError:
    message = shortened(in_one_line(redacted(str(error))), 300)
    if isinstance(error, OSError) and error.filename is not None:
        return RunError(f"cannot read {error.filename}: {error.strerror}; check that the file is readable")
    status = _http_status(error)
    next_step = "repeat the command to send the rest; nothing is sent twice"
    if status in (401, 403):
        return ProviderRefusal(
            f"{uri} refuses (HTTP {status}) to {action}: {message}; set MLFLOW_TRACKING_USERNAME and "
            "MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, for a user with permission"
        )
    if status == 404 or (status is None and _NO_MLFLOW in str(error)):
        return RunError(f"{uri} cannot {action}: {message}; {SERVER_HINT}")
    if status is None:
        return ServerUnreachable(f"{uri} did not answer the request to {action}: {message}; {next_step}")
    if status in (408, 429) or status >= 500:
        return ServerUnreachable(f"{uri} is currently unable to {action} (HTTP {status}): {message}; {next_step}")
    return RunError(f"{uri} cannot {action}: {message}; {next_step}")


def _http_status(error: Any) -> int | None:
    """Return the HTTP status of an error, or None if the server did not answer.

    If the answer was not JSON, only the text of MLflow's message contains the status.
    """
    from mlflow.exceptions import RestException

    if isinstance(error, RestException):
        return int(error.get_http_status_code())
    response = getattr(error, "response", None)
    if response is not None:
        return int(response.status_code)
    message = str(error)
    for marker in ("failed with error code ", "error code ", "too many "):
        _, separator, rest = message.partition(marker)
        if separator and rest[:3].isdigit():
            return int(rest[:3])
    return None
