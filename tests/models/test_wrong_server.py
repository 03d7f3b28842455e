"""Wrong `base_url`: a server without a model API stops the run at once, with a specific message."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from runner.base.exit_codes import ExitCode
from runner.models.providers.http_model import describe_content
from tests.support.paths import ROOT
from tests.support.processes import nip_run, nip_run_here
from tests.support.servers.not_an_api import CERTIFICATE
from tests.support.specs import spec_file

USUAL_RETRIES = {"transient": {"attempts": 8, "first_wait": 0.5, "max_wait": 30.0}}


@contextmanager
def run_wrong_server(kind: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Start a server of this kind; yield its port and its process."""
    arguments = [sys.executable, "-m", "tests.support.servers.not_an_api", kind]
    with subprocess.Popen(arguments, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip(), process
        finally:
            process.stdin.close()


@pytest.mark.sample(1)
@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("kind", "scheme", "message"),
    [
        ("page", "http", r"is not a model API: it answers with a web page \(HTML\)"),
        ("commented", "http", r"is not a model API: it answers with a web page \(HTML\)"),
        ("text", "http", r"is not a model API: it answers with text that is not a JSON object"),
        ("list", "http", r"is not a model API: it answers with text that is not a JSON object"),
        ("empty", "http", r"is not a model API: it answers with an empty body"),
        ("status", "http", r"is not a model API: it answers with JSON that is not a completion"),
        ("redis", "http", r"the server does not answer with valid HTTP"),
        ("ssh", "http", r"the server does not answer with valid HTTP"),
        ("missing", "http", r"is not a model API: it answers with a web page \(HTML\)"),
        ("files", "http", r"is not a model API: it answers with a web page \(HTML\)"),
        ("redirect", "http", r"answered 308: a redirect to https://models\.example/v1/chat/completions"),
        ("tls", "http", r"the server only accepts TLS; write https:// instead of http://"),
        ("page", "https", r"the server does not use TLS; write http:// instead of https://"),
        ("tls", "https", r"the server's TLS certificate is not trusted \(self.signed certificate"),
    ],
)
def test_wrong_server_stops_the_run_at_once_with_a_specific_message(
    tmp_path: Path, kind: str, scheme: str, message: str
) -> None:
    with run_wrong_server(kind) as (port, process):
        spec = spec_file(tmp_path, f"{scheme}://127.0.0.1:{port}/v1", size=2, retry=USUAL_RETRIES, fine_tune=None)
        started = time.monotonic()
        done = nip_run_here("run", spec, "-q", "--results", tmp_path / "results", cwd=tmp_path)
        elapsed = time.monotonic() - started
        process.communicate("")
    output = re.sub(r"\s+", " ", done.stderr)
    assert done.returncode == ExitCode.REFUSED, output
    assert re.search(message, output), output
    assert "models.m.base_url" in output
    assert elapsed < 15


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (CERTIFICATE, "is not a model API: it answers with a web page"),
        ("nowhere.pem", "cannot read certificates from SSL_CERT_FILE=nowhere.pem: No such file"),
    ],
)
def test_certificates_in_the_environment_are_trusted(tmp_path: Path, file: str | Path, message: str) -> None:
    with run_wrong_server("tls") as (port, process):
        spec = spec_file(tmp_path, f"https://127.0.0.1:{port}/v1", size=2, retry=USUAL_RETRIES, fine_tune=None)
        # in a new process, since certificates are read only once
        done = nip_run("run", spec, "-q", "--results", tmp_path / "results", cwd=tmp_path, SSL_CERT_FILE=str(file))
        process.communicate("")
    assert done.returncode == ExitCode.REFUSED
    assert message in re.sub(r"\s+", " ", done.stderr)


def test_server_that_has_answered_may_send_other_json(tmp_path: Path) -> None:
    retry = {"transient": {"attempts": 8, "first_wait": 0.01, "max_wait": 0.01}}
    with run_wrong_server("flaky") as (port, process):
        base_url = f"http://127.0.0.1:{port}/v1"
        spec = spec_file(tmp_path, base_url, size=2, retry=retry, fine_tune=None, rollouts={"concurrency": 1})
        done = nip_run_here("run", spec, "-q", "--results", tmp_path / "results", cwd=tmp_path)
        process.communicate("")
    assert done.returncode == 0, done.stderr


def test_json_with_completion_or_error_fields_may_come_from_a_model_api() -> None:
    possible_api_bodies = (
        b'{"id": "c"}',
        b'{"error": {}}',
        b'{"choices": "many"}',
        b'{"type": "message"}',
        b'{"status": "o',
    )
    assert [describe_content(content) for content in possible_api_bodies] == [None] * len(possible_api_bodies)
    assert [describe_content(content) for content in (b"{}", b'{"message": "pong"}')] == [
        "JSON that is not a completion"
    ] * 2
    assert describe_content(b'{"message": "starting"}', 503) is None


def test_error_page_of_a_proxy_with_a_failing_server_does_not_stop_the_run() -> None:
    page = b"<html>\r\n<head><title>502 Bad Gateway</title></head>"
    assert [status for status in (200, 404, 405, 429, 500, 501, 502, 503) if describe_content(page, status)] == [
        200, 404, 405, 501,
    ]  # fmt: skip
    assert describe_content(b'{"choices": []}') is None
    assert describe_content(b"\n" * 5_000 + b'{"choices": []}') is None  # sent while the model was slow
    assert describe_content(b"", 503) is None
