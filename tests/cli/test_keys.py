"""The hosts that API keys are sent to: shown by `check` and `run`, and confirmed for fetched specs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runner import run
from runner.base.errors import UsageError
from runner.models.api_keys import KeyUse, allowed_hosts, host_of, key_uses, parse_allowed
from runner.models.settings import ModelSettings
from runner.spec.loader import load_spec, load_specs
from runner.spec.origin import MARKER, fetched_folder
from tests.support.processes import nip_run_here
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file

KEY = "sk-0123456789abcdef"


def write_spec_with_key(folder: Path, base_url: str, *, fetched: bool, **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    if fetched:
        (folder / MARKER).touch()
    return spec_file(folder, base_url, size=2, models={"m": {"api_key_env": "ROW_VARIABLE"}}, **changes)


@pytest.mark.parametrize(
    ("base_url", "host"),
    [
        ("https://api.openai.com/v1", "api.openai.com"), ("https://API.Example.com/v1", "api.example.com"),
        ("https://a.example:443", "a.example"),
        ("https://a.example:8443/v1", "a.example:8443"), ("http://127.0.0.1:8000/v1", "127.0.0.1:8000"),
        ("http://api.openai.com/v1", "http://api.openai.com"), ("http://10.0.0.1:8000", "http://10.0.0.1:8000"),
        ("http://localhost.evil.example/v1", "http://localhost.evil.example"), ("http://localhost:80/v1", "localhost"),
        ("http://[::1]:8000/v1", "[::1]:8000"), ("https://user:pass@a.example/v1", "a.example"),
        ("https://api.openai.com@evil.example/v1", "evil.example"),
    ],
)  # fmt: skip
def test_host_of_returns_the_host_that_a_connection_goes_to(base_url: str, host: str) -> None:
    assert host_of(base_url) == host


def test_keys_are_sent_to_configured_hosts_and_the_openai_key_only_to_openai() -> None:
    models = [
        ModelSettings(model="a"),
        ModelSettings(model="b"),
        ModelSettings(model="c", base_url="http://127.0.0.1:1/v1"),
        ModelSettings(model="d", base_url="https://b.example/v1", api_key_env="B_KEY"),
        ModelSettings(provider="dummy", api_key_env="NOT_SENT"),
    ]
    assert key_uses(models, [(["python", "train.py"], ())]) == (
        KeyUse("*", "command:python"),
        KeyUse("B_KEY", "b.example"),
        KeyUse("OPENAI_API_KEY", "api.openai.com"),
    )


@pytest.mark.sample(2)
@pytest.mark.parametrize("pair", ["", "A", "A=", "=b", "A B=c", "A=b c", "1A=b", "A-B=c"])
def test_malformed_allow_key_pair_is_a_usage_error(pair: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="VAR=HOST"):
        parse_allowed([pair])
    process = nip_run_here(spec_file(tmp_path), "--allow-key", pair, cwd=tmp_path)
    assert process.returncode == 2
    assert not (tmp_path / "results").exists()


@pytest.mark.full
def test_check_and_run_show_which_variable_is_sent_to_which_host(tmp_path: Path) -> None:
    with run_chat_server() as server:
        path = write_spec_with_key(tmp_path, server.base_url, fetched=False)
        notice = f"sends ROW_VARIABLE -> 127.0.0.1:{server.port}"
        checked = nip_run_here("check", path, cwd=tmp_path)
        assert notice in checked.stdout.splitlines()
        as_json = json.loads(nip_run_here("check", path, "--json", cwd=tmp_path).stdout)
        assert as_json[0]["keys"] == [{"variable": "ROW_VARIABLE", "host": f"127.0.0.1:{server.port}"}]
        process = nip_run_here(path, cwd=tmp_path, ROW_VARIABLE=KEY)
        assert (process.returncode, notice in process.stderr.splitlines()) == (0, True)
        replayed = nip_run_here(path, "--replay", "tiny", cwd=tmp_path)
        assert (replayed.returncode, "sends" in replayed.stderr) == (0, False)


def test_fetched_spec_sends_only_allowed_keys(tmp_path: Path) -> None:
    with run_chat_server(record=1) as server:
        host = f"127.0.0.1:{server.port}"
        path = write_spec_with_key(tmp_path / "fetched", server.base_url, fetched=True)
        checked = nip_run_here("check", path, cwd=tmp_path).stdout
        assert (host in checked, "--allow-key VAR=HOST" in checked, f"={host}" in checked) == (True, True, False)
        refused_options: tuple[list[str], ...] = (
            [],
            ["--allow-key", f"OTHER={host}"],
            ["--allow-key", "ROW_VARIABLE=127.0.0.1:1"],
        )
        for options in refused_options:
            refused = nip_run_here(path, *options, cwd=tmp_path, ROW_VARIABLE=KEY)
            assert refused.returncode == 2
            assert f"ROW_VARIABLE -> {host}" in refused.stderr
            assert "--allow-key VAR=HOST (in Python: allow_keys=['VAR=HOST'])" in refused.stderr
            assert f"={host}" not in refused.stderr, "to allow it is to type what a stranger asks for"
        assert server.requests == 0
        assert not (tmp_path / "results").exists()
        process = nip_run_here(path, "--allow-key", f"ROW_VARIABLE={host}", cwd=tmp_path, ROW_VARIABLE=KEY)
        assert process.returncode == 0, process.stderr
        assert server.recorded_requests()[0]["headers"]["authorization"] == f"Bearer {KEY}"


def test_python_api_also_requires_allow_keys_for_a_fetched_spec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROW_VARIABLE", KEY)
    with run_chat_server() as server:
        spec = load_spec(write_spec_with_key(tmp_path / "fetched", server.base_url, fetched=True))
        with pytest.raises(UsageError, match="--allow-key"):
            run(spec, tmp_path / "results")
        assert server.requests == 0
        pair = f"ROW_VARIABLE=127.0.0.1:{server.port}"
        assert run(spec, tmp_path / "results", allow_keys=[pair]).manifest.status == "done"


@pytest.mark.full
def test_fetched_spec_calls_only_allowed_hosts_even_without_a_key(tmp_path: Path) -> None:
    with run_chat_server() as server:
        (tmp_path / "fetched").mkdir()
        (tmp_path / "fetched" / MARKER).touch()
        path = spec_file(tmp_path / "fetched", server.base_url, size=2)
        host = f"127.0.0.1:{server.port}"
        spec = load_spec(path)
        refused_arguments: tuple[dict[str, Any], ...] = (
            {},
            {"allow_hosts": "127.0.0.1:1"},
            {"allow_keys": "A_KEY=127.0.0.1:1"},
        )
        for arguments in refused_arguments:
            with pytest.raises(
                UsageError, match=rf"(?s)without a key, -> {host}.*--allow-host HOST.*allow_hosts=\['HOST'\]"
            ) as caught:
                run(spec, tmp_path / "results", **arguments)
            assert "allow_keys" not in str(caught.value)
        swept = load_specs(
            path, ["models.m.base_url=http://127.0.0.1:1/v1", f"sweep={{models.m.base_url: [{server.base_url}]}}"]
        )
        with pytest.raises(UsageError, match="--allow-host"):
            run(swept[0], tmp_path / "results")
        assert server.requests == 0
        checked = nip_run_here("check", path, cwd=tmp_path).stdout
        assert (f"-> {host}" in checked, "--allow-host HOST" in checked) == (True, True)
        assert run(spec, tmp_path / "results", allow_hosts=host).manifest.status == "done"
        overridden = load_spec(path, {"models.m.base_url": server.base_url})
        assert run(overridden, tmp_path / "given").manifest.status == "done", "who gives an address allows it"


@pytest.mark.parametrize("host", ["", "a b", "http://a/v1", "https://a"])
def test_malformed_allow_host_is_a_usage_error(host: str) -> None:
    with pytest.raises(UsageError, match="write HOST or HOST:PORT"):
        allowed_hosts([host])


def test_local_spec_that_extends_a_fetched_spec_counts_as_fetched(tmp_path: Path) -> None:
    path = write_spec_with_key(tmp_path / "fetched", "http://127.0.0.1:1/v1", fetched=True)
    local_spec = tmp_path / "ours.yaml"
    local_spec.write_text(json.dumps({"extends": str(path)}))
    process = nip_run_here(local_spec, cwd=tmp_path, ROW_VARIABLE=KEY)
    assert (process.returncode, "--allow-key" in process.stderr) == (2, True)


def test_trainer_of_a_fetched_spec_gets_only_allowed_variables(tmp_path: Path) -> None:
    command = ["touch", str(tmp_path / "here"), "{dataset}", "{output}"]
    training = {
        "iterations": 1,
        "method": "expert_iteration",
        "test": {"scheme": "none"},
        "trainers": {"m": {"backend": "command", "command": command}},
    }
    path = spec_file(
        tmp_path,
        size=12,
        kind="training",
        training=training,
        fine_tune=None,
        models={"v": {"provider": "dummy"}},
        agents={"verifier": {"model": "v", "freeze": True}},
    )
    (tmp_path / MARKER).touch()
    process = nip_run_here(path, cwd=tmp_path)
    assert (process.returncode, "* -> command:touch" in process.stderr) == (2, True), process.stderr
    assert not (tmp_path / "here").exists()


def test_fetched_marker_is_found_in_parent_folders_and_through_symlinks(tmp_path: Path) -> None:
    deep = tmp_path / "fetched" / "a" / "b"
    deep.mkdir(parents=True)
    (tmp_path / "link").symlink_to(deep)
    assert fetched_folder([tmp_path, deep]) is None
    (tmp_path / "fetched" / MARKER).touch()
    assert fetched_folder([tmp_path]) is None
    assert fetched_folder([tmp_path, deep]) == fetched_folder([tmp_path / "link"]) == tmp_path / "fetched"


@pytest.mark.parametrize("options", [(), ("--json",), ("-v", "-v")])
def test_printed_output_contains_no_secret(options: tuple[str, ...], tmp_path: Path) -> None:
    process = nip_run_here(f"{KEY}.yaml", *options, cwd=tmp_path, SOME_TOKEN=KEY)
    assert process.returncode == 2
    assert KEY not in process.stdout + process.stderr
    assert "[secret removed]" in process.stdout + process.stderr
