"""A run that was played on a server of one's own leaves without an address, a path or a name in any byte of it."""

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

from runner.documents.releases.bundle import opened
from runner.documents.releases.manifest import Release
from runner.documents.releases.reference import Kind
from runner.registry.bundles.runs import draft_of
from runner.registry.draft import Draft, Naming
from runner.registry.publishing.spec_check import unreadable_spec
from runner.registry.redaction.draft_folder import as_got, lay_out, run_folder
from runner.registry.redaction.draft_redaction import clean
from runner.registry.redaction.rules import Rules
from runner.registry.verification.verify import wrong_in_run
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.results.metric_table import METRICS
from runner.spec.rejudged_run import DEBATES
from tests.support.drafts import draft_by_hand
from tests.support.runs import journal_records, played
from tests.support.servers.chat_client import serving
from tests.support.specs import spec_file

HOMES = "/home" + "/"
MODEL = f"{HOMES}somebody/models/tiny-8b"
FAULTS = {"rate_limit": 0.15, "server_error": 0.15, "html": 0.1, "drop": 0.1}


@pytest.fixture(scope="module")
def on_vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A run on a loopback server, whose model's name is a path, with failures in its journal; and the address."""
    folder = tmp_path_factory.mktemp("vllm")
    with serving(faults=FAULTS, usage=False) as server:
        spec = spec_file(folder, server.base_url, size=6, models={"m": {"model": MODEL}})
        text = json.loads(spec.read_text())
        spec.write_text(f"# On our machine: {server.base_url}, models in {MODEL}\n{json.dumps(text, indent=1)}\n")
        result = played(spec, folder / "results")
        yield result.folder.path, server.base_url


def all_bytes(draft: Draft) -> bytes:
    pieces = [draft.release.to_bytes()]
    for content in draft.contents.values():
        with opened(content) as file:
            pieces.append(file.read())
    return b"\n".join(pieces)


def cleaned(run: Path, work: Path) -> Draft:
    (draft,) = clean([draft_by_hand(run)], work)
    return draft


@pytest.mark.full
def test_what_no_getter_could_load_is_told_before_it_is_sent(on_vllm: tuple[Path, str], tmp_path: Path) -> None:
    draft = cleaned(on_vllm[0], tmp_path)
    assert list(unreadable_spec(as_got(draft.release, draft.contents, tmp_path / "honest"))) == []
    rows = on_vllm[0] / "inputs" / "dataset.jsonl"
    with opened(draft.contents["data/spec.yaml"]) as file:
        spec = file.read().replace(b"inputs/dataset.jsonl", str(rows).encode())
    contents = {**draft.contents, "data/spec.yaml": spec}
    assert list(unreadable_spec(lay_out(contents, tmp_path / "as_ones_own"))) == []
    (said,) = unreadable_spec(as_got(draft.release, contents, tmp_path / "as_got"))
    assert "dataset.path: it leads out of" in said


def test_a_large_file_is_not_written_once_more_to_be_read_as_got(tmp_path: Path) -> None:
    rows, small = tmp_path / "rows", tmp_path / "small"
    rows.write_bytes(b"x" * (1 << 20))
    small.write_bytes(b"x")
    release = Release(kind=Kind.RUN, owner="acme", name="x", version="1")
    got = as_got(release, {"data/a.jsonl": rows, "data/b.jsonl": small}, tmp_path / "got")
    assert [(got / "data" / name).is_symlink() for name in ("a.jsonl", "b.jsonl")] == [False, False]
    assert (got / "data" / "a.jsonl").samefile(rows)
    assert not (got / "data" / "b.jsonl").samefile(small)


def test_the_head_of_debates_is_cleaned_without_holding_what_follows(tmp_path: Path) -> None:
    said, path = tmp_path / "debates.jsonl", "data/inputs/" + DEBATES
    said.write_bytes(orjson.dumps({"models": [{"model": MODEL}]}) + b"\n" + b'{"message": "/x/y"}\n' * 9)
    draft = Draft(Release(kind=Kind.RUN, owner="acme", name="x", version="1", facts={"model": MODEL}), {path: said})
    (out,) = clean([draft], tmp_path / "work")
    file = out.contents[path]
    assert isinstance(file, Path), "in a file, and not in memory"
    assert file.read_bytes() == b'{"models":[{"model":"tiny-8b"}]}\n' + b'{"message": "/x/y"}\n' * 9


@pytest.mark.full
def test_no_address_and_no_path_is_left(on_vllm: tuple[Path, str], tmp_path: Path) -> None:
    run, base_url = on_vllm
    raw = all_bytes(draft_by_hand(run))
    told = [b"127.0.0.1", base_url.encode(), MODEL.encode(), HOMES.encode(), b"somebody", str(run.parents[2]).encode()]
    assert all(one in raw for one in told[:5])
    errors = [record["error"] for record in journal_records(run) if record["kind"] == "failure"]
    assert any("127.0.0.1" in error for error in errors)
    out = all_bytes(cleaned(run, tmp_path))
    assert [one for one in told if one in out] == []
    assert base_url.rpartition(":")[2].partition("/")[0].encode() not in out


def test_what_is_published_replays_to_what_was_recorded(on_vllm: tuple[Path, str], tmp_path: Path) -> None:
    run, _ = on_vllm
    draft = cleaned(run, tmp_path / "work")
    folder = run_folder(lay_out(draft.contents, tmp_path / "got"))
    assert list(wrong_in_run(folder)) == []
    assert folder.metrics.read_bytes() == (run / "metrics.json").read_bytes()
    before, after = json.loads((run / "manifest.json").read_bytes()), folder.manifest()
    assert (after.game_sha256, after.identity) != (before["game_sha256"], before["identity"])
    assert {row["model"] for row in after.agents} == {"tiny-8b"}
    assert draft.release.identity["run"] == after.identity
    assert draft.release.facts["models"] == {"prover": "tiny-8b", "verifier": "tiny-8b"}
    assert {one["rule"] for one in draft.release.facts["cleaned"]} >= {"address", "model path"}


def test_what_a_model_said_and_how_a_call_failed_stay(on_vllm: tuple[Path, str], tmp_path: Path) -> None:
    run, _ = on_vllm
    draft = cleaned(run, tmp_path / "work")
    folder = run_folder(lay_out(draft.contents, tmp_path / "got"))
    before, after = journal_records(run), journal_records(folder.path)
    assert [one["kind"] for one in before] == [one["kind"] for one in after]
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
def test_it_is_the_same_wherever_the_run_lies_and_cleaning_again_changes_nothing(
    on_vllm: tuple[Path, str], tmp_path: Path
) -> None:
    run, _ = on_vllm
    copied = tmp_path / "elsewhere" / "results" / "runs" / run.name
    shutil.copytree(run, copied)
    shutil.copy(run.parents[2] / "spec.yaml", copied.parents[2])
    one, other = cleaned(run, tmp_path / "one"), cleaned(copied, tmp_path / "other")
    assert one.bundle().sha256 == other.bundle().sha256
    (again,) = clean([one], tmp_path / "again")
    assert again.bundle().sha256 == one.bundle().sha256


@pytest.mark.full
def test_a_journal_that_tells_nothing_leaves_byte_for_byte(tmp_path: Path) -> None:
    result = played(spec_file(tmp_path, size=4), tmp_path / "results")
    raw = draft_by_hand(result.folder.path)
    (draft,) = clean([raw], tmp_path / "work")
    assert draft.contents == raw.contents
    assert draft.release.facts["cleaned"] == []


@pytest.mark.full
def test_only_the_lines_with_an_address_change_where_no_name_does(tmp_path: Path) -> None:
    with serving(faults=FAULTS) as server:
        result = played(spec_file(tmp_path, server.base_url, size=6), tmp_path / "results")
    run = result.folder.path
    folder = run_folder(lay_out(cleaned(run, tmp_path / "work").contents, tmp_path / "got"))
    assert list(wrong_in_run(folder)) == []
    before, after = run.joinpath("journal.jsonl").read_bytes(), folder.journal.read_bytes()
    changed = [old for old, new in zip(before.split(b"\n"), after.split(b"\n"), strict=True) if old != new]
    assert changed
    assert all(b"127.0.0.1" in line for line in changed)
    assert folder.manifest().identity == result.folder.manifest().identity


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ("no answer from http://10.1.2.3:8000/v1 (m): reset", "no answer from ??? (m): reset"),
        ("Cannot connect to host gpu-box:8000 ssl:default", "Cannot connect to host ??? ssl:default"),
        ("Connect call failed ('10.1.2.3', 8000)", "Connect call failed ('???)"),
        ("The model `/srv/models/llama` does not exist", "The model `???` does not exist"),
        ("gpu-17.cluster.example.edu (10.9.8.7:29500) rank 3", "??? (???) rank 3"),
        ("rank 3 on hostnode17 failed, peer 2001:db8::17", "rank 3 on ??? failed, peer ???"),
        ("hostnode17:29500 and \\\\fileserver\\share gone", "??? and ??? gone"),
        ("see ./mine/x, ~/models/z and ~me/x, /mine", "see ???, ??? and ???, ???"),
        (
            "torch.cuda.OutOfMemoryError in worker.py:12, gpt-4.1-mini",
            "torch.cuda.OutOfMemoryError in worker.py:12, gpt-4.1-mini",
        ),
        (f"cannot read {HOMES}me/x/y.json: denied", "cannot read y.json: denied"),
        ("sent by me@gpu-box.lan", "sent by ???"),
        ("queen has no answer", "??? has no answer"),
        ("http://[::1]:8000/v1 answered 500", "??? answered 500"),
        ("see https://platform.openai.com/docs/errors", "see https://platform.openai.com/docs/errors"),
        (
            "https://api.openai.com/v1 (m) answered 429: wait 1.5 s",
            "https://api.openai.com/v1 (m) answered 429: wait 1.5 s",
        ),
    ],
)
def test_the_words_of_an_error_stay_without_what_tells_of_a_machine(said: str, left: str) -> None:
    rules = Rules({}, ("http://gpu-box:8000/v1", "http://queen:8000/v1"))
    assert rules.error(said) == left
    assert rules.error(left) == left


def test_an_address_under_its_key_goes_whatever_it_is() -> None:
    rules = Rules({}, ())
    assert rules.value({"m": {"base_url": "https://models.example.com/v1"}}) == {"m": {"base_url": "???"}}
    assert Rules({}, ("http://localhost/v1", "http://queen/v1")).addresses == [
        "http://localhost/v1", "http://queen/v1"
    ]  # fmt: skip
    several = {"m": {"base_url": ["https://models.example.com/v1", "http://gpu8:1/v1"]}}
    assert rules.value(several) == {"m": {"base_url": ["???", "???"]}}
    assert rules.written("execution.address=head-7.cluster:6379\n") == "execution.address=???\n"
    assert rules.value(
        {"execution": {"address": "head-7:6379"}, "dataset": {"ids": "street"}, "address": "weights/"}
    ) == {
        "execution": {"address": "???"},
        "dataset": {"ids": "street"},
        "address": "weights/",
    }
    assert rules.written("models.m.base_url=[http://gpu7:1/v1, http://gpu8:1/v1]\n") == "models.m.base_url=???\n"
    assert rules.value({"see": "https://models.example.com/v1"}) == {"see": "https://models.example.com/v1"}


def test_a_run_at_several_servers_leaves_none_of_their_addresses_and_says_so(tmp_path: Path) -> None:
    with serving() as server:
        other = server.base_url.replace("127.0.0.1", "localhost")
        spec = spec_file(tmp_path, server.base_url, size=2)
        given = f"models.m.base_url=[{server.base_url},{other}]"
        run = played(spec, tmp_path / "results", given).path
    draft = cleaned(run, tmp_path / "work")
    assert [word for word in (server.base_url, other, f":{server.port}") if word.encode() in all_bytes(draft)] == []
    with opened(draft.contents["data/spec.yaml"]) as file:
        assert read_yaml(file)["models"]["m"]["base_url"] == ["???", "???"]


@pytest.mark.full
def test_a_key_with_a_login_and_a_folder_as_remote_leave_no_trace(tmp_path: Path) -> None:
    from runner.documents.releases.manifest import FileSource

    result = played(spec_file(tmp_path, size=4), tmp_path / "results")
    raw = draft_by_hand(result.folder.path)
    sources = {
        "spec": FileSource(repository="https://me:word@git.example.org/a/b", commit="1" * 40, path="s", clean=True),
        "dataset": FileSource(repository="/srv/git/b.git", commit="1" * 40, path="d", clean=True),
        "prompts": FileSource(repository="git@github.com:acme/b.git", commit="1" * 40, path="p", clean=True),
    }
    (draft,) = clean([replace(raw, release=replace(raw.release, sources=sources))], tmp_path / "work")
    found = draft.release.sources
    assert found["spec"].repository == "https://git.example.org/a/b"
    assert (found["dataset"].repository, found["dataset"].clean) == (None, False)
    assert found["prompts"] == sources["prompts"]
    assert orjson.loads(draft.release.to_bytes())["sources"]["dataset"]["why"]


def test_of_an_answer_what_the_wire_format_has_stays_and_the_rest_goes() -> None:
    from runner.registry.redaction.rules import ANSWER_FIELD, Rules

    message = {"role": "assistant", "content": "on hostnode17 at /srv/x", "reasoning": "http://hostnode17/"}
    fine: dict[str, Any] = {
        "id": "chatcmpl-0123456789abcdef", "object": "chat.completion", "created": 1, "model": "m",
        "system_fingerprint": "fp_44709d6fcb", "kv_transfer_params": None, "service_tier": "default",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop", "stop_reason": None,
                     "logprobs": {"content": [{"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}]}}],
        "usage": {"prompt_tokens": 1, "prompt_tokens_details": {"cached_tokens": 0}},
    }  # fmt: skip
    rules = Rules({}, ())
    assert rules.answer(fine) == fine
    assert rules.told() == []
    told = {
        **fine, "id": "chatcmpl-hostnode17-1", "system_fingerprint": "vllm-hostnode17", "served_by": "hostnode17",
        "kv_transfer_params": {"remote_host": "hostnode17"}, "usage": {**fine["usage"], "node": "hostnode17"},
        "choices": [{**fine["choices"][0], "served_from": "hostnode17", "message": {**message, "node": "hostnode17"}}],
    }  # fmt: skip
    left = {name: value for name, value in fine.items() if name not in ("id", "system_fingerprint")}
    del left["kv_transfer_params"]
    assert rules.answer(told) == left
    assert rules.told() == [{"rule": ANSWER_FIELD, "count": 8}]


SPEC = """\
# on hostnode17, ~/plan
models:
  m: {base_url: 'http://h:1/v1', model: /a/tiny}  # at 10.1.2.3
  n:
    extra_body: {node: hostnode17, url: 'http://h:2/x', note: "see h7:2950 and /srv/raid/x", think: /no_think}
    stop: |  # mine
      no # comment, /srv/raid/y
"""


def test_a_spec_as_written_keeps_no_comment_and_its_values_are_read_by_the_rule_of_its_hashes() -> None:
    from runner.registry.redaction.rules import Rules, renamed_models
    from runner.registry.redaction.yaml_redaction import clean_yaml

    rules = Rules(renamed_models(["/a/tiny", "/b/tiny/", "/b/tiny"]), ())
    text = clean_yaml(SPEC, rules, comments=False)
    assert read_yaml(text) == rules.value(read_yaml(SPEC))
    body = {"node": "???", "url": "???", "note": "see ??? and ???", "think": "/no_think"}
    models = read_yaml(text)["models"]
    assert models["n"] == {"extra_body": body, "stop": "no # comment, ???\n"}
    assert models["m"]["model"] != "tiny" != rules.models["/b/tiny"] == rules.models["/b/tiny/"]
    assert [word for word in ("plan", "10.1", "mine", "/a/", "raid") if word in text] == []
    kept = clean_yaml("a: 1  # on host gpu-7\n", rules)
    assert kept == "a: 1  # on host ???\n"


B = "/home" + "/bob"
PLACES = {
    f"-I{B}/x.y": "-I???", f"a?{B}/x": "a????", f"x{B}": "x???", f"vllm:{B}/m": "vllm:???", "\\x\\Users\\bob": "\\x???",
    "//nas17/share/bob": "???", "$HOME/bob": "???", "${HOME}/bob": "???", "%USERPROFILE%\\bob": "???",
    "C:Users\\bob": "???", "%2Fhome%2Fbob": "???", "a%2fhome%2fbob": "a???", "%252Fhome%252Fbob": "???",
    "C%3A%5CUsers%5Cbob": "???", "unix:///run/bob.sock": "???", "s3://bucket/bob": "???", "gs://a.example.org/b": "???",
    "bobby@gpu18": "???", "mailto:bob@uni.de": "mailto:???", "fe80::17%eth0": "???", "h.cluster.local:80": "???",
    "x.corp": "???", "https://example.org/?at=%2Fhome%2Fbob": "???",
}  # fmt: skip
"""What stands in a spec, and what leaves of it."""
NO_PLACES = (
    "acme/terse@1.0", "terse@1.0", "claude@20240620", "learn@i3", "mine@latest", "git@github.com:acme/b.git",
    "datasets/users/x.jsonl", "data/media/y", "https://example.org/home/x", "//docs.example.org/x", "a // b", "5 % 3",
    "50%/x", "$5/kg", "a@b", "/no_think", "llama3:70b", "hf://acme/x", "org/name", "message.role", "x.local", "3@4",
)  # fmt: skip


@pytest.mark.parametrize("said", PLACES)
def test_a_place_leaves_no_value_in_whatever_word_it_stands(said: str) -> None:
    from runner.registry.redaction.location_patterns import Strictness, without_places

    for reading in Strictness:
        assert without_places(said, lambda _: None, reading) == PLACES[said], reading
        assert without_places(PLACES[said], lambda _: None, reading) == PLACES[said]
    assert Rules({}, ()).value({"extra_body": {"x": f"see {said}"}}) == {"extra_body": {"x": f"see {PLACES[said]}"}}


def test_what_is_no_place_stays_in_a_value() -> None:
    from runner.registry.redaction.location_patterns import Strictness, without_places

    read = {said: without_places(said, lambda _: None, Strictness.NAMES) for said in NO_PLACES if said != "a@b"}
    assert [said for said, left in read.items() if left != said] == []


def test_a_description_has_no_host_that_is_more_than_a_site() -> None:
    said = (
        "on gpu17.cs.uni.de and node:8000 by me@gpu18, xn--gpu-17a.intern:80; see arxiv.org, v1.2 of main.py, e.g. x.y"
    )
    left = "on ??? and ??? by ???, ???; see arxiv.org, v1.2 of main.py, e.g. x.y"
    assert Rules({}, ()).scalar(said, "description") == left


@pytest.mark.parametrize(
    ("url", "text"),
    [("http://[fd00::7]:8000/v1", "[fd00::7]"), ("http://h.x.de/v1", "H.X.de"), ("http://bücher.x/", "xn--bcher-kva.x"),
     ("http://xn--bcher-kva.x/", "bücher.x")],
)  # fmt: skip
def test_a_server_is_known_however_its_host_is_written(url: str, text: str) -> None:
    rules = Rules({}, (url,))
    assert rules.text(f"at {text}!") == "at ???!"
    assert rules.text("[fd00] is a list") == "[fd00] is a list"


def test_the_readme_is_made_of_what_is_left(on_vllm: tuple[Path, str], tmp_path: Path) -> None:
    folder = RunFolder(on_vllm[0])
    raw = draft_of(folder, Results.of(folder), Naming("acme"))
    (draft,) = clean([replace(raw, release=replace(raw.release, description="by me@gpu18"))], tmp_path)
    readme = draft.contents["README.md"]
    assert isinstance(readme, bytes)
    assert b"\nby ???\n" in readme
    assert b"| `tiny-8b` |" in readme
    assert b"somebody" not in readme


def test_how_metrics_are_counted_is_said_in_words_that_no_rule_takes_for_a_place() -> None:
    """Else no run that has such a metric could be published: what is recorded would not be what is recomputed."""
    said = [metric.method for metric in METRICS.values()]
    assert Rules({}, ()).value(said) == said
