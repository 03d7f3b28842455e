"""A Hub that refuses, fails or misbehaves: the error messages, and the secrecy of the token."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import NotFoundError, ReleaseError, UsageError
from runner.registry.transports.hub import HubTransport
from tests.support.hub_registry import NO_FAULTS, bundle, registry
from tests.support.processes import environment
from tests.support.servers.client import LoopbackServer
from tests.support.servers.hub_client import READ_TOKEN, WRITE_TOKEN

# Error messages


@pytest.mark.parametrize(
    ("repository", "token", "message"),
    [
        (
            "acme/none",
            None,
            "no dataset repository .*/datasets/acme/none, or it is private. .* that HF_TOKEN is set",
        ),
        ("acme/closed", None, "or it is private. .* that HF_TOKEN is set"),
        ("acme/gated", None, "the repository is gated .*Ask for access at .*/datasets/acme/gated"),
        ("acme/open", "hf_" + "x" * 30, "the token is refused .HTTP 401.*Set another one in HF_TOKEN"),
        (
            "acme/open@nowhere",
            WRITE_TOKEN,
            "the repository has no such branch, tag or commit. Correct the part after @",
        ),
        ("acme/open@" + "a" * 40, WRITE_TOKEN, "the repository has no such branch, tag or commit"),
    ],
)
def test_unreadable_repository_is_reported_with_what_to_do(
    hub: LoopbackServer, monkeypatch: pytest.MonkeyPatch, repository: str, token: str | None, message: str
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    with registry(repository) as opened, pytest.raises(ReleaseError, match=f"^hf:acme.*: cannot look up .*{message}"):
        opened.entries()


def test_publish_with_a_read_only_token_is_refused(hub: LoopbackServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", READ_TOKEN)
    for repository in ("acme/open", "acme/not-mine"):
        with (
            registry(repository) as opened,
            pytest.raises(ReleaseError, match=r"does not allow this .HTTP 403.*Check that the token has access"),
        ):
            opened.publish([bundle("forbidden")], "Publish")


def test_unknown_release_name_is_not_reported_as_a_hub_error(hub: LoopbackServer, published: str) -> None:
    with registry(published) as opened:
        with pytest.raises(NotFoundError, match=r"has no run/acme/frist.*first"):
            opened.find(bundle("frist").release.reference)
        with pytest.raises(NotFoundError, match="no such file"):
            opened._transport.open("run/acme/first/1/none")


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"status": 429, "retry_after": "86400"}, "received too many requests .HTTP 429.; .* again in 86,400 s"),
        ({"status": 429}, "received too many requests .HTTP 429.; run the same command again later"),
        ({"status": 503}, "cannot answer now .HTTP 503."),
        ({"status": 500}, "cannot answer now .HTTP 500."),
        ({"status": 418}, "HTTP 418 .as was asked for."),
        ({"mode": "hang"}, "the connection to 127.0.0.1:[0-9]+ broke"),
        ({"mode": "drop"}, "the connection to 127.0.0.1:[0-9]+ broke"),
        ({"mode": "endless_answer"}, "the server's answer is longer than 1,048,576 bytes"),
        ({"mode": "not_json"}, "does not answer as the Hub does .JSONDecodeError"),
        ({"mode": "deep_json"}, "does not answer as the Hub does .RecursionError"),
        ({"mode": "no_commit"}, "does not answer as the Hub does .ValueError: 'main' is not a commit"),
        ({"mode": "other_shape"}, "cannot list the files: the server does not answer as the Hub does"),
        ({"mode": "no_files"}, "cannot list the files: the server does not answer as the Hub does"),
        ({"mode": "dotdot"}, "'run/../../evil' of .* is not a valid file"),
        ({"mode": "endless_pages"}, "has more than 300 files, too many for a registry"),
    ],
)  # fmt: skip
def test_failing_hub_is_given_up_with_its_error(
    hub: LoopbackServer, published: str, options: dict[str, Any], message: str
) -> None:
    hub.change(**options)
    with registry(published, max_files=300) as opened, pytest.raises(ReleaseError, match=message):
        opened.entries()


def test_busy_hub_is_retried(hub: LoopbackServer, published: str) -> None:
    hub.change(busy=1, retry_after="0")
    with registry(published) as opened:
        assert len(opened.entries()) == 1


def test_unreachable_hub_is_reported_with_its_host(hub: LoopbackServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with (
        registry("acme/open") as opened,
        pytest.raises(ReleaseError, match=r"cannot reach 127.0.0.1:9 .*Check the network and the addr"),
    ):
        opened.entries()
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.example")
    with pytest.raises(UsageError, match="that begins with https://"):
        HubTransport("acme/open")


def test_offline_setting_of_the_hub_is_reported(hub: LoopbackServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ReleaseError, match=r"HF_HUB_OFFLINE is set\. Unset it"):
        HubTransport("acme/open")


def test_refused_upload_is_reported_and_adds_nothing(hub: LoopbackServer) -> None:
    hub.change(mode="refuse_upload")
    with registry("acme/open") as opened, pytest.raises(ReleaseError, match=r"cannot publish: .*no room"):
        opened.publish([bundle("refused")], "Publish")
    with registry("acme/open") as opened:
        assert "refused" not in [entry.reference.name for entry in opened.entries()]


@pytest.mark.full
@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("other_bytes", "spec.yaml is damaged: its SHA-256 differs"),
        ("longer", "spec.yaml is damaged: it is longer than the 9 bytes"),
        ("shorter", "spec.yaml is damaged: it has 8 of 9 bytes"),
        ("endless", "spec.yaml is damaged: it is longer than the 9 bytes"),
        ("cut", "spec.yaml: the connection to 127.0.0.1:[0-9]+ broke"),
        ("packed", "spec.yaml: the server answers in the encoding 'deflate', which was not requested"),
        ("elsewhere", "cannot read run/acme/first/1/spec.yaml"),
    ],
)
def test_file_that_differs_from_its_release_is_named_and_not_unpacked(
    hub: LoopbackServer,
    servers: tuple[LoopbackServer, LoopbackServer],
    published: str,
    tmp_path: Path,
    mode: str,
    message: str,
) -> None:
    with registry(published) as opened:
        (entry,) = opened.entries()
        hub.change(mode=mode, only="spec.yaml", elsewhere=servers[1].root)
        with pytest.raises(ReleaseError, match=rf"run/acme/first@1 in hf:{published}.*{message}"):
            opened.unpack(entry, tmp_path / "got")
        assert not list(tmp_path.iterdir())
        hub.change(**NO_FAULTS)
        opened.unpack(entry, tmp_path / "got")  # no wrong byte was cached


@pytest.mark.parametrize(
    "repository", ["", "acme", "acme/", "a/b/c", "../x", "acme/x@", "acme/..", "acme/x@../y", "-/x", "acme/x y"]
)
def test_invalid_repository_name_is_refused(repository: str) -> None:
    with pytest.raises(UsageError, match="is not a repository of the Hub"):
        HubTransport(repository)


# Secrecy of the token


def test_token_is_not_sent_to_another_host(
    hub: LoopbackServer, servers: tuple[LoopbackServer, LoopbackServer], published: str
) -> None:
    storage = servers[1]
    with registry("acme/private-files") as opened:
        opened.publish([bundle("sent", visibility="private")], "Publish")  # uploads to the storage
        assert list(opened.find_problems(opened.entries()[0])) == []  # and downloads from it
        (entry,) = opened.entries()
        hub.change(mode="elsewhere", elsewhere=storage.root)
        with pytest.raises(ReleaseError):
            opened.read_manifest(entry)
    hub.change(mode="pages_elsewhere", elsewhere=storage.root)
    with registry(published) as opened, pytest.raises(ReleaseError):
        opened.entries()
    requests = storage.recorded_requests()
    assert {request["method"] for request in requests} >= {"PUT", "GET"}
    assert any("/tree/" in request["path"] for request in requests)
    assert any("release.json" in request["path"] for request in requests)
    assert not [request for request in requests if "authorization" in request["headers"] or WRITE_TOKEN in str(request)]
    assert [
        request for request in hub.recorded_requests() if WRITE_TOKEN in request["headers"].get("authorization", "")
    ]


def test_token_in_an_error_of_the_hub_is_redacted(hub: LoopbackServer, published: str) -> None:
    hub.change(mode="echo")
    with registry(published) as opened, pytest.raises(ReleaseError, match="secret removed") as failed:
        opened.entries()
    assert WRITE_TOKEN not in str(failed.value)


@pytest.mark.full
def test_requests_to_the_hub_reveal_only_versions_and_nothing_is_cached_on_disk(
    hub: LoopbackServer, published: str, tmp_path: Path
) -> None:
    variables = {
        "HF_ENDPOINT": hub.root, "HF_TOKEN": WRITE_TOKEN, "HOME": str(tmp_path / "home"),
        "HF_HOME": str(tmp_path / "cache"),
    }  # fmt: skip
    (tmp_path / "home").mkdir()
    code = (
        f"from runner.registry.transports.locations import connect\n"
        f"r = connect('hf:{published}')\nprint(len(r.entries()), list(r.find_problems(r.entries()[0])))"
    )
    request_count = len(hub.recorded_requests())
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(**variables), capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("1 []\n", "")
    agents = {request["headers"]["user-agent"] for request in hub.recorded_requests()[request_count:]}
    assert len(agents) == 1
    assert agents.pop().split("/")[0] == "nip-run"
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
