"""Secrets and names of the machine are found in all published bytes, and reported by place without their text."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

import pytest

from runner.base.redaction import Redactor
from runner.documents.releases.bundle import Content
from runner.documents.releases.manifest import FileSource, Release
from runner.documents.releases.reference import Kind
from runner.registry.draft import Draft
from runner.registry.publishing.checks import CheckOutcome
from runner.registry.publishing.publish import ReadyRelease, list_failures
from runner.registry.redaction.machine_names import MachineNames
from runner.registry.redaction.private_text import (
    ProcessSecretFinder,
    find_private_text,
    find_secret_forms,
    find_secret_settings,
)
from runner.registry.redaction.text_search import BLOCK_BYTES, OVERLAP_BYTES, Finder, group_by_cause, search

ABC = "AbCdEfGhIjKlMnOpQrStUvWxYz0123456789AbCdEfGhIjKlMnOp"
ENVIRONMENT_SECRET = "a-secret+of/our own~42"

KEYS = {
    "openai, old": f"sk-{ABC[:48]}",
    "openai, project": f"sk-proj-{ABC[:40]}_{ABC[:30]}",
    "anthropic": f"sk-ant-api03-{ABC}-{ABC[:30]}AA",
    "router": "sk-or-v1-" + "0123456789abcdef" * 4,
    "hex": "sk-" + "0123456789abcdef" * 2,
    "hugging face": f"hf_{ABC[:34]}",
    "github": f"ghp_{ABC[:36]}",
    "github, fine": f"github_pat_{ABC[:22]}_{ABC}",
    "gitlab": f"glpat-{ABC[:20]}",
    "aws": "AKIAABCDEFGHIJKLMNOP",
    "google": f"AIza{ABC[:35]}",
    "slack": f"xoxb-123456789012-{ABC[:20]}",
    "groq": f"gsk_{ABC}",
    "pem": "-----BEGIN RSA PRIVATE KEY-----",
    "openssh": "-----BEGIN OPENSSH PRIVATE KEY-----",
    "jwt": f"eyJ{ABC[:20]}.eyJ{ABC[:20]}.{ABC[:30]}",
    "header": "Authorization: Basic dXNlcjpwYXNzd29yZDEyMw==",
    "header as json": json.dumps({"Authorization": f"Bearer {ABC[:24]}"}),
    "header as curl": f"curl -H 'authorization: Bearer {ABC[:24]}'",
    "bearer": f"Bearer {ABC[:30]}",
    "address": "https://me:hunter2@git.example.org/x",
}  # fmt: skip

HARMLESS = (
    "sk-estimator-doc-link and task-oriented", "def hf_hub_download(repo): ...", "ghp_", "AKIAIOSFODNN7EXAMPLE",
    "the bearer of this letter", "Authorization: Bearer $TOKEN", "Authorization: Bearer [secret removed]",
    "-----BEGIN PUBLIC KEY-----", "-----BEGIN CERTIFICATE-----", "http://example.org:8080/x@y", "eyJ", "xoxo",
    "Bearer authentication is used", "risk-" + "a" * 60,
)  # fmt: skip


def search_contents(finder: Finder, contents: Mapping[str, Content]) -> list[str]:
    return [str(finding) for finding in group_by_cause(search(contents, [finder]))]


@pytest.mark.sample(len(KEYS))
@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize("template", ["{}", '{{"content": "line\\n{}\\nline"}}', "x={}&y", "'{}'"])
def test_key_of_a_known_form_is_reported_without_its_text(name: str, template: str) -> None:
    key = KEYS[name] if template.startswith(("{}", "'", "x")) else json.dumps(KEYS[name])[1:-1]
    findings = search_contents(find_secret_forms, {"data/x.jsonl": f"first line\n{template.format(key)}\n".encode()})
    assert findings
    assert ": 1 occurrence in 1 file: data/x.jsonl:2; " in findings[0]
    assert findings[0].endswith("no option allows a secret")
    assert not any(part in line for line in findings for part in (KEYS[name], ABC[:10], "hunter2"))


@pytest.mark.parametrize("text", HARMLESS)
def test_harmless_text_is_not_reported_as_a_key(text: str) -> None:
    assert search_contents(find_secret_forms, {"x": text.encode()}) == []


FORMS = {
    "as it is": ENVIRONMENT_SECRET,
    "in JSON": json.dumps(f'"{ENVIRONMENT_SECRET}"'),
    "slashes escaped": ENVIRONMENT_SECRET.replace("/", "\\/"),
    "percent-encoded": quote(ENVIRONMENT_SECRET, safe=""),
    "hexadecimal": ENVIRONMENT_SECRET.encode().hex(),
    "Base64": base64.b64encode(f"user:{ENVIRONMENT_SECRET}".encode()).decode(),
    "escapes": "".join(f"\\u{ord(character):04x}" for character in ENVIRONMENT_SECRET),
    "HTML": "".join(f"&#{ord(character)};" for character in ENVIRONMENT_SECRET),
}


@pytest.mark.sample(10)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("offset", [0, BLOCK_BYTES - 20, BLOCK_BYTES + OVERLAP_BYTES - 5, 2 * BLOCK_BYTES - 9], ids=str)
def test_secret_of_the_environment_is_found_in_every_encoding_and_position(
    form: str, offset: int, tmp_path: Path
) -> None:
    file = tmp_path / "journal.jsonl"
    lines = b"an honest line of text, as there are many\n" * (offset // 42)
    file.write_bytes(lines + FORMS[form].encode() + b"\nand more\n" * 3)
    (finding,) = search_contents(ProcessSecretFinder(Redactor([ENVIRONMENT_SECRET])), {"data/journal.jsonl": file})
    assert f" in 1 file: data/journal.jsonl:{offset // 42 + 1}; " in finding
    assert ENVIRONMENT_SECRET not in finding


CAROL = "/home" + "/carol"
NAMES = MachineNames({CAROL: "the path of your home"}, {"carol": "your user name", "box7.lan": "this machine"})


@pytest.mark.parametrize(
    "text",
    [f"{CAROL}/x.py", '"\\/home\\/carol\\/x"', "%2Fhome%2Fcarol", "by carol, on", "carol@example", "x\\ncarol said",
     "http://box7.lan:80/", f"file://{CAROL}", f"-I{CAROL}/x", "%2fhome%2fcarol", "%252Fhome%252Fcarol", "a%5Ccarol",
     "//nas/carol", "$HOME/carol", "C:Users\\carol", "s3://x/carol", "me%40box7.lan"],
)  # fmt: skip
def test_a_name_of_this_machine_is_found(text: str) -> None:
    findings = search_contents(NAMES, {"README.md": f"one\ntwo\n{text}\n".encode()})
    assert findings
    assert all(": 1 occurrence in 1 file: README.md:3; " in line for line in findings)
    expected = [
        next(name for name in (CAROL, "carol", "box7.lan") if line.startswith(f"{name!r} (")) for line in findings
    ]
    assert [
        line.rpartition(" ")[2] for line in findings
    ] == expected  # each line ends with the option that allows its name


@pytest.mark.parametrize("text", ["carolina", "Carol has 3 apples", f"{CAROL}us/x", "mybox7.lanes", "a_carol"])
def test_similar_words_are_not_reported_as_names(text: str) -> None:
    assert search_contents(NAMES, {"x": text.encode()}) == []


def test_user_and_host_names_can_be_allowed_without_allowing_the_home_path() -> None:
    names = NAMES.without({"Carol"})
    assert search_contents(names, {"x": b"carol"}) == []
    assert search_contents(names, {"x": f"{CAROL}/y".encode()})
    assert search_contents(names.without({CAROL}), {"x": f"{CAROL}/y".encode()}) == []
    hosts = names.with_terms(["queen", "vllm", "carol"], "a host")
    assert [len(search_contents(hosts, {"x": text})) for text in (b"on queen", b"by vllm 0.6", b"carol")] == [1, 0, 0]
    assert search_contents(hosts.without({"queen"}), {"x": b"on queen"}) == []
    short = NAMES.with_terms(["g7", "h"], "a host")
    assert [len(search_contents(short, {"x": text})) for text in (b"on g7!", b"g77 h", b"on h")] == [1, 0, 0]


@pytest.mark.parametrize(
    ("repository", "is_spared"),
    [("https://github.com/carol/x", True), ("git@github.com:carol/x.git", True), ("https://git.corp/carol/x", False),
     ("ssh://carol@git.example.org/x", False), ("carol@gitbox:x.git", False), ("https://git/carol", False)],
)  # fmt: skip
def test_names_in_public_repository_addresses_are_allowed(repository: str, is_spared: bool) -> None:
    sources = {"spec": FileSource(repository=repository, commit="1" * 40, path="s", clean=True)}
    release = Release(kind=Kind.PROMPTS, owner="acme", name="x", version="1", sources=sources)
    problems = list(find_private_text(release, {"x": b"by carol"}, Draft(release, {}), NAMES))
    assert any(line.startswith("'carol' (your user name): ") for line in problems) is not is_spared


def test_server_address_is_found_case_insensitively() -> None:
    release = Release(kind=Kind.SPEC, owner="acme", name="x", version="1")
    raw = Draft(release, {"s.yaml": b"base_url: http://Gpu7.Corp.de:80/v1"})
    (problem,) = find_private_text(release, {"x": b"on GPU7.corp.de and http://gpu7.corp.de:80/v1"}, raw, NAMES)
    assert problem.startswith("'gpu7.corp.de' (an address of a server in the spec): 2 occurrences in 1 file: x:1, ...;")
    assert problem.endswith("--allow-name gpu7.corp.de")
    assert list(find_private_text(release, {"x": b"on GPU7.corp.de"}, raw, NAMES.without({"gpu7.corp.de"}))) == []


def test_allowing_a_host_does_not_allow_a_secret_in_its_url() -> None:
    release = Release(kind=Kind.SPEC, owner="acme", name="x", version="1")
    for secret in (
        "http://gpu7.corp.de/t/Zk41xQ/v1",
        "http://gpu7.corp.de/v1?key=Zk41xQ",
        "http://me:Zk41@gpu7.corp.de/v1",
    ):
        raw = Draft(release, {"s.yaml": f"base_url: {secret}".encode()})
        allowed = NAMES.without({"gpu7.corp.de"})
        assert list(find_private_text(release, {"x": f"served at {secret}".encode()}, raw, allowed)), secret
        assert list(find_private_text(release, {"x": b"on gpu7.corp.de"}, raw, allowed)) == []


def test_machine_names_come_from_the_process_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = tmp_path / "zaphod"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USER", "trillian")
    monkeypatch.setenv("HOSTNAME", "magrathea.example.org")
    names = MachineNames.of_process(tmp_path / "results")
    assert {str(home), str(tmp_path / "results")} <= names.paths.keys()
    assert {"zaphod", "trillian", "magrathea", "magrathea.example.org"} <= names.terms.keys()
    monkeypatch.setenv("USER", "root")
    assert "root" not in MachineNames.of_process().terms


def test_one_cause_is_reported_in_one_line_with_count_and_first_places() -> None:
    token = f"hf_{ABC[:34]}\n".encode()
    (finding,) = search_contents(find_secret_forms, {"a": token * 40, "b": b"\n" + token * 2})
    assert finding == (
        "a token of Hugging Face: 42 occurrences in 2 files: a:1, a:2, a:3, a:4, a:5, ...; "
        "remove this text and publish again; no option allows a secret"
    )
    (finding,) = search_contents(
        NAMES, {"a": b"carol and carol\n", "b": b"\ncarol", "c": b" " * (BLOCK_BYTES - 5) + b"carol"}
    )
    assert finding == (
        "'carol' (your user name): 4 occurrences in 3 files: a:1, b:2, c:1, ...; remove this text and publish again; "
        "if it identifies no one, add --allow-name carol"
    )


def test_one_cause_in_several_releases_is_one_problem() -> None:
    releases = [Release(kind=Kind.PROMPTS, owner="acme", name=name, version="1") for name in ("one", "two")]
    outcomes = [
        CheckOutcome("nothing private", tuple(group_by_cause(search({"x": b"carol"}, [NAMES])))),
        CheckOutcome("terms", ("no licence",)),
    ]
    ready = [ReadyRelease(Draft(release, {}), outcomes, None) for release in releases]
    private, terms = list_failures(ready)
    assert private == (
        "nothing private: 'carol' (your user name): 2 occurrences in 2 files: prompts/acme/one@1:x:1, "
        "prompts/acme/two@1:x:1; remove this text and publish again; if it identifies no one, add --allow-name carol"
    )
    assert terms == "prompts/acme/one@1 and 1 more: terms: no licence"


@pytest.mark.parametrize(
    ("line", "is_reported"),
    [("token: tok-1234567890", True), ("API-KEY: 'abc'", True), ("my_password: x", True), ("Authorization: abc", True),
     ("user_credentials: [a]", True), ("max_tokens: '10'", False), ("eos_token: </s>", False), ("token: ???", False),
     ("key: ${key}", False), ("monkey: x", False), ("tokenizer: x/y", False)],
)  # fmt: skip
def test_value_of_a_secret_key_is_reported_by_file_and_key(line: str, is_reported: bool) -> None:
    key = line.partition(":")[0]
    body = f"models:\n  m:\n    extra_body:\n      deep:\n        {line}\n"
    problems = list(find_secret_settings({"data/spec.yaml": body.encode()}))
    assert [problem.partition(" has a value")[0] for problem in problems] == [
        f"data/spec.yaml: models.m.extra_body.deep.{key}"
    ] * is_reported
    assert not any("1234567890" in problem for problem in problems)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("settings.json", '{"optimizer": {"lr": 1}, "password": "hunter2hunter2"}'),
        ("conf.yaml", "run:\n  api_key: 8f3b2c1d0e9f\n"),
        ("local.env", "WANDB_API_KEY=0123456789abcdef\n"),
    ],
)
def test_secret_in_a_trainer_settings_file_is_found_by_its_key(name: str, text: str) -> None:
    path = f"data/inputs/trainers/p/{name}.txt"
    (problem,) = find_secret_settings({path: text.encode()})
    assert problem.startswith(f"{path}: ")
    assert not list(find_secret_settings({"data/inputs/prompts/prover.jinja": text.encode()}))
