"""Redaction of published runs: no byte contains an address, a path or a user name of the machine."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from yaml import safe_load as read_yaml

from runner.documents.releases.bundle import open_content
from runner.documents.releases.manifest import FileSource, Release
from runner.documents.releases.reference import Kind
from runner.registry.bundles.runs import build_run_draft
from runner.registry.draft import Draft, PublisherChoices
from runner.registry.publishing.checks import find_spec_problems
from runner.registry.redaction.draft_folder import run_folder, write_draft_folder, write_fetched_folder
from runner.registry.redaction.draft_redaction import redact_drafts, redact_source
from runner.registry.redaction.location_patterns import redact_locations
from runner.registry.redaction.machine_names import MachineNames
from runner.registry.redaction.private_text import find_private_text
from runner.registry.redaction.rules import ANSWER_FIELD, RedactionRules, choose_public_names, list_addresses
from runner.registry.redaction.yaml_redaction import redact_yaml
from runner.registry.verification.verify import find_run_problems
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.results.metric_definitions import METRICS
from runner.spec.rejudged_run import DEBATES
from tests.support.drafts import build_reference_draft
from tests.support.runs import journal_records, run_spec
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file

HOMES = "/home" + "/"
MODEL = f"{HOMES}somebody/models/tiny-8b"
NAMES_USER, NAMES_HOME = "zaphod", f"{HOMES}zaphod7"
FAULTS = {"rate_limit": 0.15, "server_error": 0.2, "drop": 0.1}


@pytest.fixture(scope="module")
def vllm_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A run on a loopback server with a path as the model's name and failures in its journal, and the server's URL."""
    folder = tmp_path_factory.mktemp("vllm")
    with run_chat_server(faults=FAULTS, usage=False) as server:
        spec = spec_file(folder, server.base_url, size=6, models={"m": {"model": MODEL}})
        text = json.loads(spec.read_text())
        spec.write_text(f"# On our machine: {server.base_url}, models in {MODEL}\n{json.dumps(text, indent=1)}\n")
        result = run_spec(spec, folder / "results")
        yield result.folder.path, server.base_url


def join_bytes(draft: Draft) -> bytes:
    pieces = [draft.release.to_bytes()]
    for content in draft.contents.values():
        with open_content(content) as file:
            pieces.append(file.read())
    return b"\n".join(pieces)


def redact(run: Path, work_folder: Path) -> Draft:
    (draft,) = redact_drafts([build_reference_draft(run)], work_folder)
    return draft


@pytest.mark.full
def test_spec_that_would_not_load_after_fetching_is_reported_before_publishing(
    vllm_run: tuple[Path, str], tmp_path: Path
) -> None:
    draft = redact(vllm_run[0], tmp_path)
    assert list(find_spec_problems(write_fetched_folder(draft.release, draft.contents, tmp_path / "honest"))) == []
    rows = vllm_run[0] / "inputs" / "dataset.jsonl"
    with open_content(draft.contents["data/spec.yaml"]) as file:
        spec = file.read().replace(b"inputs/dataset.jsonl", str(rows).encode())
    contents = {**draft.contents, "data/spec.yaml": spec}
    assert list(find_spec_problems(write_draft_folder(contents, tmp_path / "as_ones_own"))) == []
    (problem,) = find_spec_problems(write_fetched_folder(draft.release, contents, tmp_path / "as_got"))
    assert "dataset.path: the path is outside" in problem


def test_large_file_is_hard_linked_instead_of_copied(tmp_path: Path) -> None:
    rows, small = tmp_path / "rows", tmp_path / "small"
    rows.write_bytes(b"x" * (1 << 20))
    small.write_bytes(b"x")
    release = Release(kind=Kind.RUN, owner="acme", name="x", version="1")
    folder = write_fetched_folder(release, {"data/a.jsonl": rows, "data/b.jsonl": small}, tmp_path / "got")
    assert [(folder / "data" / name).is_symlink() for name in ("a.jsonl", "b.jsonl")] == [False, False]
    assert (folder / "data" / "a.jsonl").samefile(rows)
    assert not (folder / "data" / "b.jsonl").samefile(small)


def test_first_line_of_debates_is_redacted_without_loading_the_rest(tmp_path: Path) -> None:
    debates, path = tmp_path / "debates.jsonl", "data/inputs/" + DEBATES
    debates.write_bytes(orjson.dumps({"models": [{"model": MODEL}]}) + b"\n" + b'{"message": "/x/y"}\n' * 9)
    draft = Draft(Release(kind=Kind.RUN, owner="acme", name="x", version="1", facts={"model": MODEL}), {path: debates})
    (redacted,) = redact_drafts([draft], tmp_path / "work")
    file = redacted.contents[path]
    assert isinstance(file, Path), "in a file, and not in memory"
    assert file.read_bytes() == b'{"models":[{"model":"tiny-8b"}]}\n' + b'{"message": "/x/y"}\n' * 9


@pytest.mark.full
def test_redacted_release_has_no_address_and_no_path(vllm_run: tuple[Path, str], tmp_path: Path) -> None:
    run, base_url = vllm_run
    raw = join_bytes(build_reference_draft(run))
    private_texts = [
        b"127.0.0.1",
        base_url.encode(),
        MODEL.encode(),
        HOMES.encode(),
        b"somebody",
        str(run.parents[2]).encode(),
    ]
    assert all(text in raw for text in private_texts[:5])
    errors = [record["error"] for record in journal_records(run) if record["kind"] == "failure"]
    assert any("127.0.0.1" in error for error in errors)
    redacted = join_bytes(redact(run, tmp_path))
    assert [text for text in private_texts if text in redacted] == []
    assert base_url.rpartition(":")[2].partition("/")[0].encode() not in redacted


def test_redacted_release_replays_to_the_recorded_metrics(vllm_run: tuple[Path, str], tmp_path: Path) -> None:
    run, _ = vllm_run
    draft = redact(run, tmp_path / "work")
    folder = run_folder(write_draft_folder(draft.contents, tmp_path / "got"))
    assert list(find_run_problems(folder)) == []
    assert folder.metrics.read_bytes() == (run / "metrics.json").read_bytes()
    before, after = json.loads((run / "manifest.json").read_bytes()), folder.manifest()
    assert (after.game_sha256, after.identity) != (before["game_sha256"], before["identity"])
    assert {row["model"] for row in after.agents} == {"tiny-8b"}
    assert draft.release.identity["run"] == after.identity
    assert draft.release.facts["models"] == {"prover": "tiny-8b", "verifier": "tiny-8b"}
    assert {entry["rule"] for entry in draft.release.facts["cleaned"]} >= {"address", "model path"}


def test_redaction_keeps_answers_and_reasons_of_failures(vllm_run: tuple[Path, str], tmp_path: Path) -> None:
    run, _ = vllm_run
    draft = redact(run, tmp_path / "work")
    folder = run_folder(write_draft_folder(draft.contents, tmp_path / "got"))
    before, after = journal_records(run), journal_records(folder.path)
    assert [record["kind"] for record in before] == [record["kind"] for record in after]
    for old, new in zip(before, after, strict=True):
        if old["kind"] == "call":
            assert new["answer"] == {**old["answer"], "model": "tiny-8b"}
            assert new["asked"][1] == old["asked"][1]
        if old["kind"] == "failure":
            assert (
                new["error"]
                == "no answer from ???" * ("no answer" in old["error"])
                + "???" * ("no answer" not in old["error"])
                + old["error"].partition("/v1")[2]
            )
            assert {**old, "error": new["error"]} == new


@pytest.mark.full
def test_redaction_is_the_same_in_any_folder_and_idempotent(vllm_run: tuple[Path, str], tmp_path: Path) -> None:
    run, _ = vllm_run
    copied = tmp_path / "elsewhere" / "results" / "runs" / run.name
    shutil.copytree(run, copied)
    shutil.copy(run.parents[2] / "spec.yaml", copied.parents[2])
    first, second = redact(run, tmp_path / "one"), redact(copied, tmp_path / "other")
    assert first.bundle().sha256 == second.bundle().sha256
    (redacted_twice,) = redact_drafts([first], tmp_path / "again")
    assert redacted_twice.bundle().sha256 == first.bundle().sha256


@pytest.mark.full
def test_journal_without_private_text_is_published_unchanged(tmp_path: Path) -> None:
    result = run_spec(spec_file(tmp_path, size=4), tmp_path / "results")
    raw = build_reference_draft(result.folder.path)
    (draft,) = redact_drafts([raw], tmp_path / "work")
    assert draft.contents == raw.contents
    assert draft.release.facts["cleaned"] == []


@pytest.mark.full
def test_redaction_changes_only_journal_lines_with_an_address(tmp_path: Path) -> None:
    with run_chat_server(faults=FAULTS) as server:
        result = run_spec(spec_file(tmp_path, server.base_url, size=6), tmp_path / "results")
    run = result.folder.path
    folder = run_folder(write_draft_folder(redact(run, tmp_path / "work").contents, tmp_path / "got"))
    assert list(find_run_problems(folder)) == []
    before, after = run.joinpath("journal.jsonl").read_bytes(), folder.journal.read_bytes()
    changed = [old for old, new in zip(before.split(b"\n"), after.split(b"\n"), strict=True) if old != new]
    assert changed
    assert all(b"127.0.0.1" in line for line in changed)
    assert folder.manifest().identity == result.folder.manifest().identity


@pytest.mark.parametrize(
    ("message", "redacted"),
    [
        ("no answer from http://10.1.2.3:8000/v1 (m): reset", "no answer from ??? (m): reset"),
        ("Cannot connect to host gpu-box:8000 ssl:default", "Cannot connect to host ??? ssl:default"),
        ("Cannot connect to host gpu-box:8000 [Refused]", "Cannot connect to host ??? [Refused]"),
        ("Connect call failed ('10.1.2.3', 8000)", "Connect call failed ('???)"),
        ("The model `/srv/models/llama` does not exist", "The model `???` does not exist"),
        ("(10.9.8.7:29500) rank 3, peer 2001:db8::17", "(???) rank 3, peer ???"),
        ("see \\\\fileserver\\share or ~/models/z and ~me/x", "see ??? or ??? and ???"),
        ("OutOfMemoryError in worker.py:12, gpt-4.1-mini", "OutOfMemoryError in worker.py:12, gpt-4.1-mini"),
        (f"cannot read {HOMES}me/x/y.json: denied", "cannot read ???: denied"),
        ("sent by me@gpu-box.lan to s3://bucket/x by unix:///run/x.sock", "sent by ??? to ??? by ???"),
        ("queen has no answer", "??? has no answer"),
        ("http://[::1]:8000/v1 answered 500", "??? answered 500"),
        ("see https://platform.openai.com/docs/errors", "see https://platform.openai.com/docs/errors"),
    ],
)
def test_error_message_loses_address_user_and_path_and_nothing_else(message: str, redacted: str) -> None:
    rules = RedactionRules({}, ("http://gpu-box:8000/v1", "http://queen:8000/v1"))
    assert rules.redact_message(message) == redacted
    assert rules.redact_message(redacted) == redacted


def test_any_value_of_an_address_key_is_redacted() -> None:
    rules = RedactionRules({}, ())
    assert rules.redact_value({"m": {"base_url": "https://models.example.com/v1"}}) == {"m": {"base_url": "???"}}
    assert list_addresses(("http://localhost/v1", "http://queen/v1")) == ("http://localhost/v1", "http://queen/v1")
    several = {"m": {"base_url": ["https://models.example.com/v1", "http://gpu8:1/v1"]}}
    assert rules.redact_value(several) == {"m": {"base_url": ["???", "???"]}}
    assert rules.redact_lines("execution.address=head-7.cluster:6379\n") == "execution.address=???\n"
    assert rules.redact_value(
        {"execution": {"address": "head-7:6379"}, "dataset": {"ids": "street"}, "address": "weights/"}
    ) == {
        "execution": {"address": "???"},
        "dataset": {"ids": "street"},
        "address": "weights/",
    }
    assert rules.redact_lines("models.m.base_url=[http://gpu7:1/v1, http://gpu8:1/v1]\n") == "models.m.base_url=???\n"
    assert rules.redact_value({"see": "https://models.example.com/v1"}) == {"see": "https://models.example.com/v1"}


def test_run_on_several_servers_is_published_without_their_addresses(tmp_path: Path) -> None:
    with run_chat_server() as server:
        second_url = server.base_url.replace("127.0.0.1", "localhost")
        spec = spec_file(tmp_path, server.base_url, size=2)
        override = f"models.m.base_url=[{server.base_url},{second_url}]"
        run = run_spec(spec, tmp_path / "results", override).path
    draft = redact(run, tmp_path / "work")
    assert [
        address for address in (server.base_url, second_url, f":{server.port}") if address.encode() in join_bytes(draft)
    ] == []
    with open_content(draft.contents["data/spec.yaml"]) as file:
        assert read_yaml(file)["models"]["m"]["base_url"] == ["???", "???"]


@pytest.mark.full
def test_repository_logins_and_local_remotes_are_redacted(tmp_path: Path) -> None:
    result = run_spec(spec_file(tmp_path, size=4), tmp_path / "results")
    raw = build_reference_draft(result.folder.path)
    sources = {
        "spec": FileSource(repository="https://me:word@git.example.org/a/b", commit="1" * 40, path="s", clean=True),
        "dataset": FileSource(repository="/srv/git/b.git", commit="1" * 40, path="d", clean=True),
        "prompts": FileSource(repository="git@github.com:acme/b.git", commit="1" * 40, path="p", clean=True),
    }
    (draft,) = redact_drafts([replace(raw, release=replace(raw.release, sources=sources))], tmp_path / "work")
    redacted = draft.release.sources
    assert redacted["spec"].repository == "https://git.example.org/a/b"
    assert (redacted["dataset"].repository, redacted["dataset"].clean) == (None, False)
    assert redacted["prompts"] == sources["prompts"]
    assert orjson.loads(draft.release.to_bytes())["sources"]["dataset"]["why"]


@pytest.mark.parametrize(
    "address",
    ["ssh://git@gitbox.corp:2222/a/b", "git@gitbox:a/b.git", "https://10.1.2.3/a/b", "http://[fe80::1]/a/b"],
)
def test_repository_that_is_not_on_the_public_internet_is_redacted(address: str) -> None:
    source = redact_source(FileSource(repository=address, commit="1" * 40, path="p", clean=True))
    assert (source.repository, source.clean) == (None, False)
    assert source.why


def test_answer_keeps_fields_of_the_wire_format_and_loses_others() -> None:
    message = {"role": "assistant", "content": "on hostnode17 at /srv/x", "reasoning": "http://hostnode17/"}
    plain_answer: dict[str, Any] = {
        "id": "chatcmpl-0123456789abcdef", "object": "chat.completion", "created": 1, "model": "m",
        "system_fingerprint": "fp_44709d6fcb", "kv_transfer_params": None, "service_tier": "default",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop", "stop_reason": None,
                     "logprobs": {"content": [{"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}]}}],
        "usage": {"prompt_tokens": 1, "prompt_tokens_details": {"cached_tokens": 0}},
    }  # fmt: skip
    rules = RedactionRules({}, ("http://queen:8000/v1",))
    assert rules.redact_answer(plain_answer) == plain_answer
    text = [{"type": "text", "text": "on queen at /srv/x/y"}]
    usage = {"input_tokens": 1, "service_tier": "standard", "cache_creation": {"ephemeral_5m_input_tokens": 2}}
    messages_api = {"id": "msg_1", "type": "message", "role": "assistant", "content": text, "usage": usage}
    assert rules.redact_answer(messages_api) == messages_api
    assert rules.summary() == []
    answer = {
        **plain_answer, "id": "chatcmpl-10.1.2.3", "system_fingerprint": "vllm at queen", "served_by": "hostnode17",
        "kv_transfer_params": {"remote_host": "hostnode17"}, "usage": {**plain_answer["usage"], "node": "hostnode17"},
        "choices": [{**plain_answer["choices"][0], "served_from": "hostnode17",
                     "message": {**message, "node": "hostnode17"}}],
    }  # fmt: skip
    redacted = {**plain_answer, "id": "chatcmpl-???", "system_fingerprint": "vllm at ???"}
    del redacted["kv_transfer_params"]
    assert rules.redact_answer(answer) == redacted
    assert rules.summary() == [{"rule": "address", "count": 2}, {"rule": ANSWER_FIELD, "count": 6}]


SPEC = """\
# on hostnode17, ~/plan
models:
  m: {base_url: 'http://h:1/v1', model: /a/tiny}  # at 10.1.2.3
  n:
    extra_body: {node: hostnode17, url: 'http://h:2/x', note: "see 10.2.3.4:2950 and /srv/raid/x", think: /no_think}
    stop: |  # mine
      no # comment, /srv/raid/y
"""


def test_redacted_spec_text_has_no_comments_and_only_redacted_values() -> None:
    rules = RedactionRules(choose_public_names(["/a/tiny", "/b/tiny/", "/b/tiny"]), ())
    text = redact_yaml(SPEC, rules, comments=False)
    assert read_yaml(text) == rules.redact_value(read_yaml(SPEC))
    body = {"node": "???", "url": "???", "note": "see ??? and ???", "think": "/no_think"}
    models = read_yaml(text)["models"]
    assert models["n"] == {"extra_body": body, "stop": "no # comment, ???\n"}
    assert models["m"]["model"] != "tiny" != rules.models["/b/tiny"] == rules.models["/b/tiny/"]
    assert [private for private in ("plan", "10.1", "mine", "/a/", "raid") if private in text] == []
    assert redact_yaml("a: 1  # free text\n", rules) == "a: 1  # free text\n"


BOB_HOME = "/home" + "/bob"
LOCATIONS = {
    f"-I{BOB_HOME}/x.y": "-I???", f"a?{BOB_HOME}/x": "a????", f"x{BOB_HOME}": "x???", f"vllm:{BOB_HOME}/m": "vllm:???",
    "\\x\\Users\\bob": "\\x???",
    "//nas17/share/bob": "???", "$HOME/bob": "???", "${HOME}/bob": "???", "%USERPROFILE%\\bob": "???",
    "C:Users\\bob": "???", "%2Fhome%2Fbob": "???", "a%2fhome%2fbob": "a???", "%252Fhome%252Fbob": "???",
    "C%3A%5CUsers%5Cbob": "???", "unix:///run/bob.sock": "???", "s3://bucket/bob": "???", "gs://a.example.org/b": "???",
    "bobby@gpu18": "???", "mailto:bob@uni.de": "mailto:???", "fe80::17%eth0": "???", "h.cluster.local:80": "???",
    "x.corp": "???", "https://example.org/?at=%2Fhome%2Fbob": "???",
}  # fmt: skip
"""Texts of a spec, each with its redacted form."""
NOT_LOCATIONS = (
    "acme/terse@1.0", "terse@1.0", "claude@20240620", "learn@i3", "mine@latest", "git@github.com:acme/b.git",
    "datasets/users/x.jsonl", "data/media/y", "https://example.org/home/x", "//docs.example.org/x", "a // b", "5 % 3",
    "50%/x", "$5/kg", "/no_think", "llama3:70b", "hf://acme/x", "org/name", "message.role", "x.local", "3@4",
)  # fmt: skip


@pytest.mark.parametrize("text", LOCATIONS)
def test_location_inside_any_text_is_redacted(text: str) -> None:
    assert redact_locations(text, lambda _: None) == LOCATIONS[text]
    assert redact_locations(LOCATIONS[text], lambda _: None) == LOCATIONS[text]
    assert RedactionRules({}, ()).redact_value({"extra_body": {"x": f"see {text}"}}) == {
        "extra_body": {"x": f"see {LOCATIONS[text]}"}
    }


def test_text_that_is_not_a_location_is_not_redacted() -> None:
    redacted = {text: redact_locations(text, lambda _: None) for text in NOT_LOCATIONS}
    assert [text for text, result in redacted.items() if result != text] == []


def test_description_is_redacted_like_any_other_value() -> None:
    description = "by me@gpu18 at http://gpu17:80/v1 in /srv/x/y; see arxiv.org, v1.2 of main.py, node:8000"
    redacted = "by ??? at ??? in ???; see arxiv.org, v1.2 of main.py, node:8000"
    assert RedactionRules({}, ()).redact_string(description, "description") == redacted


@pytest.mark.parametrize(
    ("url", "text"),
    [("http://[fd00::7]:8000/v1", "[fd00::7]"), ("http://h.x.de/v1", "H.X.de"), ("http://bücher.x/", "xn--bcher-kva.x"),
     ("http://xn--bcher-kva.x/", "bücher.x")],
)  # fmt: skip
def test_server_is_recognized_in_any_spelling_of_its_host(url: str, text: str) -> None:
    rules = RedactionRules({}, (url,))
    assert rules.redact_message(f"at {text}!") == "at ???!"
    assert rules.redact_message("[fd00] is a list") == "[fd00] is a list"


PLANTED = {
    "your user name": f"by {NAMES_USER}", "the path of your home": f"in {NAMES_HOME}/x", "a token": "hf_" + "a1" * 20,
    "an address of a server": "at http://gpu7.corp.de:80/v1",
}  # fmt: skip


@pytest.mark.sample(1)
@pytest.mark.parametrize("cause", PLANTED)
def test_private_text_in_any_file_is_redacted_or_reported_with_file_and_line(
    vllm_run: tuple[Path, str], tmp_path: Path, cause: str
) -> None:
    names = MachineNames({NAMES_HOME: "the path of your home"}, {NAMES_USER: "your user name"})
    raw = build_run_draft(RunFolder(vllm_run[0]), Results.of(RunFolder(vllm_run[0])), PublisherChoices("acme"))
    server = Draft(raw.release, {**raw.contents, "x.txt": b"models.m.base_url=http://gpu7.corp.de:80/v1\n"})
    (draft,) = redact_drafts([raw], tmp_path)
    paths = sorted(draft.contents)
    assert {"README.md", "data/journal.jsonl", "data/inputs/dataset.jsonl", "data/manifest.json"} <= set(paths)
    for path in paths:
        with open_content(draft.contents[path]) as file:
            data = file.read()
        planted = {**draft.contents, path: data + f"\n{PLANTED[cause]}\n".encode()}
        line = data.count(b"\n") + 2
        messages = list(find_private_text(draft.release, planted, server, names))
        assert [f": {path}:{line};" in message for message in messages if cause in message] == [True], path


def test_readme_is_written_after_redaction(vllm_run: tuple[Path, str], tmp_path: Path) -> None:
    folder = RunFolder(vllm_run[0])
    raw = build_run_draft(folder, Results.of(folder), PublisherChoices("acme"))
    (draft,) = redact_drafts([replace(raw, release=replace(raw.release, description="by me@gpu18"))], tmp_path)
    readme = draft.contents["README.md"]
    assert isinstance(readme, bytes)
    assert b"\nby ???\n" in readme
    assert b"| `tiny-8b` |" in readme
    assert b"somebody" not in readme


def test_metric_descriptions_contain_no_text_that_is_redacted() -> None:
    """Otherwise a run with such a metric could not be published, because its recomputed metrics would differ."""
    descriptions = [metric.method for metric in METRICS.values()]
    assert RedactionRules({}, ()).redact_value(descriptions) == descriptions
