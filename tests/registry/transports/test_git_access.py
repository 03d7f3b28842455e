"""Access to a git repository by the user's own configuration and credentials, and only at the given address."""

from __future__ import annotations

import base64
import os
import tempfile
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from runner.base.errors import ReleaseError
from runner.registry.transports.locations import connect
from tests.support import git_repositories
from tests.support.registry_locations import bundle

TOKEN = "token-of-ann-0123456789"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "own").mkdir()
    (tmp_path / "home").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "own"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("GIT_ASKPASS", raising=False)
    monkeypatch.delenv("SSH_ASKPASS", raising=False)
    return tmp_path / "home"


@pytest.fixture
def served(tmp_path: Path) -> Path:
    git_repositories.init_bare(
        tmp_path / "served" / "registry.git", "http.receivepack=true", "uploadpack.allowFilter=true"
    )
    return tmp_path / "served"


def read_command_lines() -> str:
    """Return the command lines of all running processes."""
    lines = []
    for path in Path("/proc").glob("[0-9]*"):
        for name in ("cmdline",):
            try:
                lines.append((path / name).read_bytes().replace(b"\0", b" ").decode("utf-8", "replace"))
            except OSError:
                continue
    return "\n".join(lines)


def require_password(process_lists: list[str], token: str = TOKEN) -> Callable[[BaseHTTPRequestHandler], bool]:
    """Return a handler that requires a password, and records the running command lines when it gets the password."""
    authorization = "Basic " + base64.b64encode(f"ann:{token}".encode()).decode()

    def before(handler: BaseHTTPRequestHandler) -> bool:
        if handler.headers.get("Authorization") == authorization:
            process_lists.append(read_command_lines())
            return False
        handler.send_response(401)
        handler.send_header("WWW-Authenticate", 'Basic realm="x"')
        handler.send_header("Content-Length", "0")
        handler.end_headers()
        return True

    return before


def write_credential_helper(home: Path, token: str) -> None:
    script = home / "helper"
    script.write_text(f"#!/bin/sh\necho username=ann\necho password={token}\n")
    script.chmod(0o755)
    (home / ".gitconfig").write_text(f"[credential]\n\thelper = {script}\n")


def test_credential_helper_is_used_and_its_token_is_shown_nowhere(
    served: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_credential_helper(home, TOKEN)
    for name in ("GIT_TRACE", "GIT_TRACE_CURL", "GIT_CURL_VERBOSE", "GIT_TRACE_PACKET"):
        monkeypatch.setenv(name, str(tmp_path / "trace"))
    process_lists: list[str] = []
    with (
        git_repositories.run_git_http(served, require_password(process_lists)) as address,
        connect(f"git:{address}/registry.git") as registry,
    ):
        registry.publish([bundle(contents={"a": os.urandom(300_000)})], "one")
        registry.unpack(registry.entries()[0], tmp_path / "got")
        assert TOKEN not in registry.address
    assert any("git" in lines and address in lines for lines in process_lists)
    assert not [lines for lines in process_lists if TOKEN in lines]
    assert not (tmp_path / "trace").exists()
    assert not [
        path for path in (tmp_path / "served").rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()
    ]


@pytest.mark.parametrize("token", [None, "another-token-9876543210"])
def test_refused_user_is_told_to_set_a_credential_helper_without_a_prompt(
    served: Path, home: Path, token: str | None
) -> None:
    if token is not None:
        write_credential_helper(home, token)
    refused = pytest.raises(ReleaseError, match="Give git a credential helper")
    with (
        git_repositories.run_git_http(served, require_password([])) as address,
        connect(f"git:{address}/registry.git") as registry,
        refused as raised,
    ):
        registry.entries()
    assert "another-token" not in str(raised.value)


def test_git_error_is_shown_without_passwords(served: Path, home: Path) -> None:
    """The user's own configuration may have put a password into the address."""

    def fail(handler: BaseHTTPRequestHandler) -> bool:
        handler.send_error(500)
        return True

    with git_repositories.run_git_http(served, fail) as address:
        host = address.removeprefix("http://")
        (home / ".gitconfig").write_text(f'[url "http://ann:{TOKEN}@{host}/"]\n\tinsteadOf = {address}/\n')
        with (
            connect(f"git:{address}/registry.git") as registry,
            pytest.raises(ReleaseError, match="error: 500") as raised,
        ):
            registry.entries()
    assert TOKEN not in str(raised.value)


def test_redirect_to_another_host_is_not_followed(served: Path, tmp_path: Path) -> None:
    requests: list[str] = []

    def record_request(handler: BaseHTTPRequestHandler) -> bool:
        requests.append(handler.path)
        return False

    def redirect_to(target: str) -> Callable[[BaseHTTPRequestHandler], bool]:
        def before(handler: BaseHTTPRequestHandler) -> bool:
            handler.send_response(302)
            handler.send_header("Location", target + handler.path)
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return True

        return before

    with git_repositories.run_git_http(served, record_request) as other_address:
        for target in (other_address, f"file://{served}", "ext::sh -c evil"):
            moved = pytest.raises(ReleaseError, match="has moved")
            with (
                git_repositories.run_git_http(served, redirect_to(target)) as address,
                connect(f"git:{address}/registry.git") as registry,
                moved,
            ):
                registry.entries()
    assert requests == []


def test_server_without_the_smart_http_protocol_is_refused(served: Path) -> None:
    """The old protocol, which fetches single files, would follow `http-alternates` to any address."""
    requests: list[str] = []

    def serve_files(handler: BaseHTTPRequestHandler) -> bool:
        requests.append(handler.path)
        path = served / handler.path.partition("?")[0].lstrip("/")
        content = path.read_bytes() if path.is_file() else None
        handler.send_response(404 if content is None else 200)
        handler.send_header("Content-Length", str(len(content or b"")))
        handler.end_headers()
        handler.wfile.write(content or b"")
        return True

    repository = served / "registry.git"
    git_repositories.commit(repository, git_repositories.write_tree(repository, {b"a": ("100644", b"a")}))
    git_repositories.git(repository, "update-server-info")
    (repository / "objects" / "info").mkdir(exist_ok=True)
    (repository / "objects" / "info" / "http-alternates").write_text("http://127.0.0.1:9/objects\n")
    refused = pytest.raises(ReleaseError, match="git failed")
    with (
        git_repositories.run_git_http(served, serve_files) as address,
        connect(f"git:{address}/registry.git") as registry,
        refused,
    ):
        registry.entries()
    assert not [path for path in requests if "alternates" in path]


def test_environment_variables_of_git_are_ignored(
    served: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a hook, git sets these variables for all child processes."""
    hook_folder = git_repositories.init_bare(tmp_path / "other.git")
    script = tmp_path / "evil.sh"
    script.write_text(f"#!/bin/sh\ntouch {tmp_path}/it-ran\n")
    script.chmod(0o755)
    for name, value in {
        "GIT_DIR": hook_folder, "GIT_WORK_TREE": tmp_path, "GIT_INDEX_FILE": hook_folder / "index",
        "GIT_OBJECT_DIRECTORY": hook_folder / "objects",
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": hook_folder / "objects", "GIT_NAMESPACE": "x",
        "GIT_QUARANTINE_PATH": hook_folder,
        "GIT_SHALLOW_FILE": hook_folder / "shallow", "GIT_REPLACE_REF_BASE": "refs/x/", "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "core.hooksPath", "GIT_CONFIG_VALUE_0": tmp_path, "GIT_EXTERNAL_DIFF": script,
        "GIT_PROXY_COMMAND": script, "GIT_EDITOR": script, "GIT_PAGER": script, "GIT_TEMPLATE_DIR": tmp_path,
        "GIT_CONFIG_PARAMETERS": f"'core.sshcommand={script}'", "GIT_ALLOW_PROTOCOL": "none",
        "GIT_PROTOCOL": "version=0", "GIT_DEFAULT_HASH": "sha256",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, str(value))
    with connect(f"git:{served / 'registry.git'}") as registry:
        registry.publish([bundle()], "one")
    assert git_repositories.git(hook_folder, "for-each-ref") == ""
    assert not list((hook_folder / "objects").rglob("*.pack"))
    assert git_repositories.git(served / "registry.git", "rev-list", "--count", "main") == "1"
    assert not (tmp_path / "it-ran").exists()


def test_current_repository_and_user_hooks_are_ignored(
    served: Path, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "evil.sh"
    script.write_text(f"#!/bin/sh\ntouch {tmp_path}/it-ran\nexit 1\n")
    script.chmod(0o755)
    (home / "hooks").mkdir()
    for name in ("pre-push", "reference-transaction", "pre-receive", "post-receive"):
        (home / "hooks" / name).symlink_to(script)
    (home / ".gitconfig").write_text(
        f"[core]\n\thooksPath = {home}/hooks\n\tautocrlf = true\n\tattributesFile = {home}/attributes\n"
        f'[filter "evil"]\n\tclean = {script}\n\tsmudge = {script}\n[push]\n\tgpgSign = true\n\tfollowTags = true\n'
        "\tpushOption = x\n\trecurseSubmodules = on-demand\n[commit]\n\tgpgSign = true\n[init]\n\tdefaultBranch = odd\n"
        "[fetch]\n\tprune = true\n\trecurseSubmodules = true\n[transfer]\n\tfsckObjects = false\n"
    )
    (home / "attributes").write_text("* filter=evil\n")
    repository = tmp_path / "here"
    repository.mkdir()
    git_repositories.git(repository, "init", "-q", ".")
    git_repositories.git(repository, "config", "core.sshCommand", str(script))
    git_repositories.git(repository, "config", "core.fsmonitor", str(script))
    git_repositories.git(repository, "config", "remote.nip-run-registry.url", str(tmp_path / "elsewhere"))
    monkeypatch.chdir(repository)
    with connect(f"git:{served / 'registry.git'}") as registry:
        registry.publish([bundle(contents={"a.txt": b"one\r\ntwo\n"})], "one")
        assert registry.open(registry.entries()[0], "a.txt").read() == b"one\r\ntwo\n"
    assert not (tmp_path / "it-ran").exists()


def test_ssh_command_of_the_user_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, served: Path) -> None:
    """`GIT_SSH_COMMAND` gets the named host and no secret."""
    ssh = tmp_path / "ssh"
    ssh.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/called\nfor last; do :; done\ncd {served} && eval "$last"\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("GIT_SSH_COMMAND", str(ssh))
    monkeypatch.setenv("GIT_SSH_VARIANT", "ssh")
    for number, location in enumerate(
        ("git@example.org:registry.git", f"ssh://git@example.org{served}/registry.git"), 1
    ):
        with connect(f"git:{location}") as registry:
            registry.publish([bundle(f"council-{number}")], "one")
    called = (tmp_path / "called").read_text()
    assert "git@example.org git-upload-pack 'registry.git'" in called
    assert "git-receive-pack" in called
    assert git_repositories.git(served / "registry.git", "rev-list", "--count", "main") == "2"


def test_missing_git_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sh").symlink_to("/bin/sh")
    (tmp_path / "registry.git").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with connect(f"git:{tmp_path / 'registry.git'}") as registry, pytest.raises(ReleaseError, match="install it"):
        registry.entries()
