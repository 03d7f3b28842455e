"""Secrets and a machine's names are found in any byte that would leave, and are told by place alone."""

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
from runner.registry.redaction.private_text import find_private_text
from runner.registry.redaction.secrets import ProcessSecretFinder, find_secret_forms, find_secret_settings
from runner.registry.redaction.text_search import BLOCK_BYTES, OVERLAP_BYTES, Finder, group_by_cause, search

ABC = "AbCdEfGhIjKlMnOpQrStUvWxYz0123456789AbCdEfGhIjKlMnOp"
HELD = "a-secret+of/our own~42"

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

HONEST = (
    "sk-estimator-doc-link and task-oriented", "def hf_hub_download(repo): ...", "ghp_", "AKIAIOSFODNN7EXAMPLE",
    "the bearer of this letter", "Authorization: Bearer $TOKEN", "Authorization: Bearer [secret removed]",
    "-----BEGIN PUBLIC KEY-----", "-----BEGIN CERTIFICATE-----", "http://example.org:8080/x@y", "eyJ", "xoxo",
    "Bearer authentication is used", "risk-" + "a" * 60,
)  # fmt: skip


def search_contents(finder: Finder, contents: Mapping[str, Content]) -> list[str]:
    return [str(one) for one in group_by_cause(search(contents, [finder]))]


@pytest.mark.sample(len(KEYS))
@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize("around", ["{}", '{{"content": "line\\n{}\\nline"}}', "x={}&y", "'{}'"])
def test_a_key_of_a_known_form_is_found_and_not_shown(name: str, around: str) -> None:
    key = KEYS[name] if around.startswith(("{}", "'", "x")) else json.dumps(KEYS[name])[1:-1]
    said = search_contents(find_secret_forms, {"data/x.jsonl": f"first line\n{around.format(key)}\n".encode()})
    assert said
    assert ": 1 occurrence in 1 file: data/x.jsonl:2; " in said[0]
    assert said[0].endswith("no option allows a secret")
    assert not any(part in line for line in said for part in (KEYS[name], ABC[:10], "hunter2"))


@pytest.mark.parametrize("text", HONEST)
def test_honest_texts_hold_no_key(text: str) -> None:
    assert search_contents(find_secret_forms, {"x": text.encode()}) == []


FORMS = {
    "as it is": HELD,
    "in JSON": json.dumps(f'"{HELD}"'),
    "slashes escaped": HELD.replace("/", "\\/"),
    "percent-encoded": quote(HELD, safe=""),
    "hexadecimal": HELD.encode().hex(),
    "Base64": base64.b64encode(f"user:{HELD}".encode()).decode(),
    "escapes": "".join(f"\\u{ord(character):04x}" for character in HELD),
    "HTML": "".join(f"&#{ord(character)};" for character in HELD),
}


@pytest.mark.sample(10)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("at", [0, BLOCK_BYTES - 20, BLOCK_BYTES + OVERLAP_BYTES - 5, 2 * BLOCK_BYTES - 9], ids=str)
def test_a_key_of_the_environment_is_found_in_every_form_wherever_it_stands(form: str, at: int, tmp_path: Path) -> None:
    file = tmp_path / "journal.jsonl"
    lines = b"an honest line of text, as there are many\n" * (at // 42)
    file.write_bytes(lines + FORMS[form].encode() + b"\nand more\n" * 3)
    (said,) = search_contents(ProcessSecretFinder(Redactor([HELD])), {"data/journal.jsonl": file})
    assert f" in 1 file: data/journal.jsonl:{at // 42 + 1}; " in said
    assert HELD not in said


CAROL = "/home" + "/carol"
NAMES = MachineNames({CAROL: "the path of your home"}, {"carol": "your user name", "box7.lan": "this machine"})


@pytest.mark.parametrize(
    "text",
    [f"{CAROL}/x.py", '"\\/home\\/carol\\/x"', "%2Fhome%2Fcarol", "by carol, on", "carol@example", "x\\ncarol said",
     "http://box7.lan:80/", f"file://{CAROL}", f"-I{CAROL}/x", "%2fhome%2fcarol", "%252Fhome%252Fcarol", "a%5Ccarol",
     "//nas/carol", "$HOME/carol", "C:Users\\carol", "s3://x/carol", "me%40box7.lan"],
)  # fmt: skip
def test_a_name_of_this_machine_is_found(text: str) -> None:
    said = search_contents(NAMES, {"README.md": f"one\ntwo\n{text}\n".encode()})
    assert said
    assert all(": 1 occurrence in 1 file: README.md:3; " in line for line in said)
    words = [next(word for word in (CAROL, "carol", "box7.lan") if line.startswith(f"{word!r} (")) for line in said]
    assert [line.rpartition(" ")[2] for line in said] == words  # each line ends with the option that allows its word


@pytest.mark.parametrize("text", ["carolina", "Carol has 3 apples", f"{CAROL}us/x", "mybox7.lanes", "a_carol"])
def test_other_words_are_no_names(text: str) -> None:
    assert search_contents(NAMES, {"x": text.encode()}) == []


def test_a_word_that_means_nobody_can_be_allowed_and_a_home_cannot() -> None:
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
def test_only_words_of_an_address_that_anybody_knows_are_spared(repository: str, is_spared: bool) -> None:
    sources = {"spec": FileSource(repository=repository, commit="1" * 40, path="s", clean=True)}
    release = Release(kind=Kind.PROMPTS, owner="acme", name="x", version="1", sources=sources)
    said = list(find_private_text(release, {"x": b"by carol"}, Draft(release, {}), NAMES))
    assert any(line.startswith("'carol' (your user name): ") for line in said) is not is_spared


def test_an_address_is_found_in_whatever_case_it_is_written() -> None:
    release = Release(kind=Kind.SPEC, owner="acme", name="x", version="1")
    raw = Draft(release, {"s.yaml": b"base_url: http://Gpu7.Corp.de:80/v1"})
    (said,) = find_private_text(release, {"x": b"on GPU7.corp.de and http://gpu7.corp.de:80/v1"}, raw, NAMES)
    assert said.startswith("'gpu7.corp.de' (an address of a server in the spec): 2 occurrences in 1 file: x:1, ...;")
    assert said.endswith("--allow-name gpu7.corp.de")
    assert list(find_private_text(release, {"x": b"on GPU7.corp.de"}, raw, NAMES.without({"gpu7.corp.de"}))) == []


def test_allowing_a_host_does_not_allow_a_secret_in_an_address_there() -> None:
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


def test_the_names_of_here_are_those_of_the_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
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


def test_one_cause_is_one_line_with_the_number_of_its_occurrences_and_their_first_places() -> None:
    token = f"hf_{ABC[:34]}\n".encode()
    (said,) = search_contents(find_secret_forms, {"a": token * 40, "b": b"\n" + token * 2})
    assert said == (
        "a token of Hugging Face: 42 occurrences in 2 files: a:1, a:2, a:3, a:4, a:5, ...; "
        "remove this text and publish again; no option allows a secret"
    )
    (said,) = search_contents(
        NAMES, {"a": b"carol and carol\n", "b": b"\ncarol", "c": b" " * (BLOCK_BYTES - 5) + b"carol"}
    )
    assert said == (
        "'carol' (your user name): 4 occurrences in 3 files: a:1, b:2, c:1, ...; remove this text and publish again; "
        "if it identifies no one, add --allow-name carol"
    )


def test_one_cause_in_several_releases_is_one_problem() -> None:
    releases = [Release(kind=Kind.PROMPTS, owner="acme", name=name, version="1") for name in ("one", "two")]
    outcomes = [
        CheckOutcome("nothing private", tuple(group_by_cause(search({"x": b"carol"}, [NAMES])))),
        CheckOutcome("terms", ("no licence",)),
    ]
    made = [ReadyRelease(Draft(release, {}), outcomes, None) for release in releases]
    private, terms = list_failures(made)
    assert private == (
        "nothing private: 'carol' (your user name): 2 occurrences in 2 files: prompts/acme/one@1:x:1, "
        "prompts/acme/two@1:x:1; remove this text and publish again; if it identifies no one, add --allow-name carol"
    )
    assert terms == "prompts/acme/one@1 and 1 more: terms: no licence"


@pytest.mark.parametrize(
    ("line", "is_told"),
    [("token: tok-1234567890", True), ("API-KEY: 'abc'", True), ("my_password: x", True), ("Authorization: abc", True),
     ("user_credentials: [a]", True), ("max_tokens: '10'", False), ("eos_token: </s>", False), ("token: ???", False),
     ("key: ${key}", False), ("monkey: x", False), ("tokenizer: x/y", False)],
)  # fmt: skip
def test_a_value_under_a_key_that_says_secret_is_told_by_file_and_key(line: str, is_told: bool) -> None:
    key = line.partition(":")[0]
    body = f"models:\n  m:\n    extra_body:\n      deep:\n        {line}\n"
    said = list(find_secret_settings({"data/spec.yaml": body.encode()}))
    assert [one.partition(" has a value")[0] for one in said] == [
        f"data/spec.yaml: models.m.extra_body.deep.{key}"
    ] * is_told
    assert not any("1234567890" in one for one in said)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("settings.json", '{"optimizer": {"lr": 1}, "password": "hunter2hunter2"}'),
        ("conf.yaml", "run:\n  api_key: 8f3b2c1d0e9f\n"),
        ("local.env", "WANDB_API_KEY=0123456789abcdef\n"),
    ],
)
def test_a_secret_in_a_settings_file_of_a_trainer_is_found_by_its_key(name: str, text: str) -> None:
    path = f"data/inputs/trainers/p/{name}.txt"
    (problem,) = find_secret_settings({path: text.encode()})
    assert problem.startswith(f"{path}: ")
    assert not list(find_secret_settings({"data/inputs/prompts/prover.jinja": text.encode()}))
