"""Headers of a model group: the spec names them, their values come from the environment and are never stored."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runner.base.errors import ProviderRefusal, UsageError
from runner.models.api_keys import KeyUse, check_allowed, host_uses, key_uses
from runner.models.headers import headers_of
from runner.models.interface import Request, SampleKey
from runner.models.layers.cache import request_fields
from runner.models.settings import ModelSettings
from runner.rollouts.identity import model_content
from runner.spec.loader import load_spec
from tests.support.processes import nip_run_here
from tests.support.runs import run_spec
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file

SECRET = "team-7f3a9c-value-0001"


def make_group(**settings: object) -> ModelSettings:
    return ModelSettings(model="tiny", **{"base_url": "http://127.0.0.1:9/v1", **settings})  # type: ignore[arg-type]


def test_header_value_is_sent_to_the_server_and_written_to_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEAM_ID", f"  {SECRET}\n")
    with run_chat_server(record=100, text=f"I was sent {SECRET}.\n\nDecision: accept") as server:
        headers = {"X-Team": "$TEAM_ID", "User-Agent": "$TEAM_ID"}
        spec_file(tmp_path, server.base_url, size=2, models={"m": {"headers": headers}})
        result = run_spec(tmp_path / "spec.yaml", tmp_path / "results")
        sent = server.recorded_requests()
    assert result.status == "done"
    assert {(request["headers"]["x-team"], request["headers"]["user-agent"]) for request in sent} == {(SECRET, SECRET)}
    assert not any("x-session-id" in request["headers"] for request in sent), (
        "session ids are sent only if the spec asks for them"
    )
    files = [path for path in (tmp_path / "results").rglob("*") if path.is_file()]
    assert [path.name for path in files if SECRET.encode() in path.read_bytes()] == []
    assert "$TEAM_ID" in (result.path / "spec.yaml").read_text()


def test_headers_and_servers_are_not_part_of_the_run_identity(tmp_path: Path) -> None:
    spec = spec_file(tmp_path, "http://127.0.0.1:9/v1", size=2)
    plain = load_spec(spec).experiment.models["m"]
    other_group = load_spec(
        spec, ["models.m.headers={X-A: $A}", "models.m.base_url=[http://a/v1,http://b/v1]"]
    ).experiment.models["m"]
    assert model_content(plain, None) == model_content(other_group, None)


def test_cache_key_depends_on_the_first_server_only() -> None:
    request = Request("m", (), SampleKey("p", 0, 0, "prover", 0))
    fields_of_one_server, fields_of_two_servers, fields_of_another_first_server = (
        request_fields(request, make_group(base_url=urls, headers=headers))
        for urls, headers in (
            ("http://a/v1", None), (("http://a/v1", "http://b/v1"), {"X-A": "$A"}), (("http://b/v1", "http://a/v1"), {})
        )
    )  # fmt: skip
    assert fields_of_one_server == fields_of_two_servers != fields_of_another_first_server


@pytest.mark.parametrize(
    ("value", "expected_error"),
    [
        ("", "is empty"),
        ("a\r\nX-Evil: 1", "a line break"),
        ("café", "outside ASCII"),
        ("long header" * 500, "more than 4096"),
    ],
)
def test_invalid_header_value_is_rejected_without_quoting_it(
    monkeypatch: pytest.MonkeyPatch, value: str, expected_error: str
) -> None:
    monkeypatch.setenv("ODD", value)
    monkeypatch.delenv("GONE", raising=False)
    with pytest.raises(ProviderRefusal, match=expected_error) as caught:
        headers_of(make_group(headers={"X-Odd": "$ODD", "X-Gone": "$GONE"}), "m")
    assert "models.m.headers.X-Gone" in str(caught.value), "all at once"
    assert not value or value not in str(caught.value)


REFUSED = {
    "Authorization": "set models.m.api_key_env", "x-session-id": "set models.m.session_id", "Host": "the client sets",
    "CONTENT-LENGTH": "the client sets", "Transfer-Encoding": "the client sets", "X Y": "not a valid header name",
    "X\r\nY": "not a valid header name", "Ü": "not a valid header name", "": "not a valid header name",
    "x-Twice": "the same header as X-twice",
}  # fmt: skip


@pytest.mark.full
def test_reserved_and_malformed_headers_are_all_reported_at_once(tmp_path: Path) -> None:
    headers = {"X-twice": "$A", **dict.fromkeys(REFUSED, "$A")}
    spec_file(tmp_path, "http://127.0.0.1:9/v1", models={"m": {"headers": headers}})
    done = nip_run_here("check", "spec.yaml", cwd=tmp_path)
    assert done.returncode == 2
    message = " ".join(done.stderr.split())
    assert [expected_error for expected_error in REFUSED.values() if expected_error not in message] == []
    assert f"{len(REFUSED)} problems" in message


@pytest.mark.full
def test_literal_header_value_in_a_spec_is_rejected_and_not_repeated(tmp_path: Path) -> None:
    literal_value = "pasted-0b51f2-value"  # not recognized as a secret by its form
    spec_file(tmp_path, "http://127.0.0.1:9/v1", models={"m": {"headers": {"X-Team": literal_value}}})
    for options in ((), ("--json",)):
        done = nip_run_here("check", "spec.yaml", *options, cwd=tmp_path)
        assert done.returncode == 2
        assert "must not contain a header's value: write $NAME" in " ".join((done.stderr + done.stdout).split())
        assert literal_value not in done.stderr + done.stdout


@pytest.mark.full
@pytest.mark.parametrize("key", ["api_key", "api_key_env"])
def test_api_key_in_a_spec_is_rejected_and_not_repeated(tmp_path: Path, key: str) -> None:
    literal_key = "pasted-" + "0b51" * 20  # the excerpt of its line ends inside the key
    (tmp_path / "spec.yaml").write_text(f"models: {{m: {{{key}: {literal_key}}}}}\n")
    done = nip_run_here("check", "spec.yaml", cwd=tmp_path)
    assert f"models.m.{key}: " in done.stderr
    assert "[secret removed]" in done.stderr
    assert "pasted" not in done.stderr


def test_untrusted_spec_needs_permission_for_each_variable_and_host() -> None:
    servers = ("https://a.example/v1", "https://b.example/v1")
    groups = [make_group(base_url=servers, api_key_env="KEY", headers={"X-Team": "$TEAM_ID"})]
    uses = key_uses(groups)
    assert [str(use) for use in uses] == [
        "KEY -> a.example", "KEY -> b.example", "TEAM_ID -> a.example", "TEAM_ID -> b.example"
    ]  # fmt: skip
    with pytest.raises(UsageError, match=r"TEAM_ID -> b\.example") as caught:
        check_allowed(uses, {use for use in uses if use.host == "a.example"}, "this spec")
    assert "TEAM_ID -> a.example" not in str(caught.value)
    check_allowed(uses, uses, "this spec")
    groups_without_keys = [make_group(base_url=servers)]
    assert host_uses(groups_without_keys) == (KeyUse("", "a.example"), KeyUse("", "b.example"))


def test_check_lists_all_servers_of_a_group(tmp_path: Path) -> None:
    servers = ["http://a.example:8000/v1", "http://b.example/v1"]
    spec_file(tmp_path, None, models={"m": {"provider": "openai", "model": "tiny", "base_url": servers}})
    output = nip_run_here("check", "spec.yaml", cwd=tmp_path).stdout
    assert f"m uses 2 servers: {servers[0]}, {servers[1]}" in " ".join(output.split())
    (report,) = json.loads(nip_run_here("check", "spec.yaml", "--json", cwd=tmp_path).stdout)
    assert report["servers"] == {"m": servers}
