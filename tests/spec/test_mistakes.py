"""Mistakes once reported as bugs in nip-run are problems of the spec, with a position and exit code 2."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import SpecError
from runner.base.hashing import file_hash
from runner.base.package_data import exists, find_file, is_file, is_folder
from runner.documents.schema_check import MAX_INTEGER
from runner.models.providers.openai import make_client
from runner.models.settings import ModelSettings
from runner.spec.checks.models import address_problem
from runner.spec.loader import load_spec, load_specs
from tests.support.processes import nip_run_here
from tests.support.specs import spec_file


def refused_stderr(folder: Path, *overrides: str, **changes: Any) -> str:
    """Return stderr of a run that is refused without writing a file."""
    spec_file(folder, **changes)
    files_before = sorted(folder.iterdir())
    done = nip_run_here("spec.yaml", *overrides, cwd=folder)
    assert done.returncode == 2, done.stderr
    assert "bug in nip-run" not in done.stderr
    assert sorted(folder.iterdir()) == files_before
    return done.stderr


@pytest.mark.full
def test_long_override_is_accepted(tmp_path: Path) -> None:
    spec_file(tmp_path, size=2)
    numbers = ", ".join(map(str, range(10**9, 10**9 + 25)))
    done = nip_run_here("check", "spec.yaml", f"sweep={{seed: [{numbers}]}}", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)) == 25


@pytest.mark.full
def test_sweep_over_long_values_gives_short_folder_names(tmp_path: Path) -> None:
    spec_file(tmp_path, size=2)
    done = nip_run_here("spec.yaml", f"sweep={{benchmark: [{'a' * 300}, {'b' * 300}]}}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {len(run.name) for run in (tmp_path / "results" / "runs").iterdir()} == {len("tiny-0123456789")}


LONG_NAME = "a" * 300
DEEP_PATH = "/".join(["d" * 200] * 30)


@pytest.mark.parametrize("name", [f"{LONG_NAME}.yaml", DEEP_PATH, '"a\\0b.yaml"'])
@pytest.mark.parametrize("key", ["dataset.path", "prompts", "protocol.use", "extends"])
def test_impossible_path_is_reported_as_not_found(tmp_path: Path, key: str, name: str) -> None:
    if key == "extends":
        spec_file(tmp_path)
        (tmp_path / "spec.yaml").write_text(f"extends: {name}\n")
        done = nip_run_here("check", "spec.yaml", cwd=tmp_path)
        assert done.returncode == 2
        assert "spec.yaml:1:1: extends: no file" in done.stderr
    else:
        assert re.search(f": {key}: (there is )?no ", refused_stderr(tmp_path, f"{key}={name}"))


def test_impossible_path_of_a_replayed_run_is_reported_as_not_found(tmp_path: Path) -> None:
    stderr = refused_stderr(tmp_path, "models.m.provider=replay", f"models.m.run={LONG_NAME}")
    assert "models.m.run: no run folder" in stderr


@pytest.mark.parametrize("argument", [f"{LONG_NAME}.yaml", DEEP_PATH, "a\0b", "\udcff.yaml", "\ud800"])
def test_impossible_spec_path_is_reported_as_not_found(tmp_path: Path, argument: str) -> None:
    done = nip_run_here(argument, cwd=tmp_path)
    assert done.returncode == 2
    assert "no such spec file" in done.stderr


def test_file_lookups_of_impossible_names_return_false(tmp_path: Path) -> None:
    for name in (LONG_NAME, DEEP_PATH, "a\0b", "\ud800"):
        path = tmp_path / name
        assert (exists(path), is_file(path), is_folder(path), find_file(name, tmp_path)) == (False, False, False, None)


def test_file_in_an_unreadable_folder_is_not_found(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)  # root can read every folder, the user nobody cannot
    try:
        with pytest.raises(PermissionError):
            (tmp_path / "closed" / "x").stat()
        assert not exists(tmp_path / "closed" / "x")
    finally:
        os.seteuid(user)


def test_journal_that_is_a_fifo_is_refused_without_waiting(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    os.mkfifo(tmp_path / "run" / "journal.jsonl")
    stderr = refused_stderr(tmp_path, "models.m.provider=replay", "models.m.run=run")
    assert "models.m.run: 'run' has no readable journal.jsonl" in stderr


@pytest.mark.parametrize("path", ["fifo", "/dev/zero", "."])
def test_file_hash_refuses_files_that_are_not_regular(tmp_path: Path, path: str) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="not a regular file"):
        file_hash(tmp_path / path)


@pytest.mark.sample(6)
@pytest.mark.parametrize("number", [2**63, 2**64, 10**30, -(2**63), 10**79])
@pytest.mark.parametrize("key", ["seed", "models.m.seed", "rollouts.per_datapoint", "models.m.extra_body.top_k"])
def test_integer_beyond_63_bits_is_refused_at_its_position(tmp_path: Path, key: str, number: int) -> None:
    stderr = refused_stderr(tmp_path, f"{key}={number}")
    assert f"override '{key}={number}':1:1: {key}: a whole number has at most 63 bits here" in stderr


@pytest.mark.parametrize(
    "override",
    ["protocol.verifier_reward=1e200", "protocol.prover_reward=-1e51", "+models.m.price={input: 1e60, output: 1}"],
)
def test_numbers_too_large_for_statistics_are_refused(tmp_path: Path, override: str) -> None:
    with pytest.raises(SpecError, match=r"is too (large|small); must be at (most|least) -?1e\+50"):
        load_spec(spec_file(tmp_path), [override])


@pytest.mark.parametrize("number", ["1e19", "1e300", "-1e19", "9223372036854775808.0"])
@pytest.mark.parametrize("key", ["seed", "models.m.seed", "rollouts.per_datapoint", "dataset.limit"])
def test_whole_number_written_as_a_float_is_limited_to_63_bits(tmp_path: Path, key: str, number: str) -> None:
    with pytest.raises(SpecError, match=f"{re.escape(key)}: a whole number has at most 63 bits here"):
        load_spec(spec_file(tmp_path), [f"{key}={number}"])


def test_float_may_exceed_63_bits(tmp_path: Path) -> None:
    models = load_spec(spec_file(tmp_path), ["models.m.timeout=1e300", "models.m.extra_body.x=1e300"]).experiment.models
    assert models["m"].timeout == 1e300


def test_largest_integer_is_a_valid_seed(tmp_path: Path) -> None:
    assert load_spec(spec_file(tmp_path, seed=MAX_INTEGER)).experiment.seed == 2**63 - 1


@pytest.mark.parametrize("number", ["9" * 5000, "-" + "9" * 5000, "0x" + "f" * 5000, "1" + "_0" * 3000])
def test_number_of_thousands_of_digits_is_refused_at_its_position(tmp_path: Path, number: str) -> None:
    assert f"seed: a number of {len(number)} characters" in refused_stderr(tmp_path, f"seed={number}")
    (tmp_path / "more.yaml").write_text(f"extends: spec.yaml\nname: x\nseed: {number}\n")
    with pytest.raises(SpecError, match=r"more\.yaml:3:1: seed: a number of"):
        load_spec(tmp_path / "more.yaml")


@pytest.mark.parametrize("parts", [25, 1500, 30_000])
@pytest.mark.parametrize("form", ["{}=1", "+{}=1", "~{}", "sweep={{? {} : [1, 2]}}"])
def test_key_with_too_many_parts_is_refused(tmp_path: Path, form: str, parts: int) -> None:
    with pytest.raises(SpecError, match=rf"the key has {parts:,} parts, but at most 24 are allowed"):
        load_specs(spec_file(tmp_path), [form.format(".".join(["k"] * parts))])


def test_argument_with_a_lone_surrogate_is_refused(tmp_path: Path) -> None:
    stderr = refused_stderr(tmp_path, "description=a\udcff")
    assert "character 14 (U+DCFF) is half of a surrogate pair, which UTF-8 cannot encode" in stderr


def test_deeply_nested_interpolations_are_refused(tmp_path: Path) -> None:
    chain = {f"k{n}": f"${{models.m.extra_body.k{n + 1}}}" for n in range(2000)}
    stderr = refused_stderr(tmp_path, models={"m": {"extra_body": {**chain, "k2000": "end"}}})
    assert "levels deep" in stderr


@pytest.mark.parametrize("name", [LONG_NAME, "spec.yaml/x", "a\0b"])
def test_impossible_results_and_cache_paths_are_refused_first(tmp_path: Path, name: str) -> None:
    for arguments in (
        ("spec.yaml",),
        ("runs",),
        ("leaderboard",),
        ("export", "x", "--format", "openai", "--out", name),
    ):
        spec_file(tmp_path)
        done = nip_run_here(*arguments, "--results", name, cwd=tmp_path)
        assert done.returncode == 2
        assert "as a folder: " in done.stderr
    assert ": cache: cannot use" in refused_stderr(tmp_path, f"cache={json.dumps(name)}")


def test_folder_is_refused_as_a_cache(tmp_path: Path) -> None:
    assert "cache: cannot use '.' as a cache: it is a folder" in refused_stderr(tmp_path, "cache=.")


def test_dataset_that_is_a_list_is_refused_if_the_protocol_needs_a_checker(tmp_path: Path) -> None:
    (tmp_path / "list.yaml").write_text("extends: spec.yaml\nprotocol: {use: proposer_critic}\ndataset: [1]\n")
    spec_file(tmp_path)
    done = nip_run_here("check", "list.yaml", cwd=tmp_path)
    assert (done.returncode, "bug in nip-run" in done.stderr) == (2, False), done.stderr
    assert "list.yaml:3:1: dataset: expected a mapping" in done.stderr


def test_reward_whose_square_overflows_is_refused(tmp_path: Path) -> None:
    assert "1e+300 is too large; must be at most 1e+50" in refused_stderr(tmp_path, "protocol.prover_reward=1e300")


# Addresses


VALID_ADDRESSES = (
    "http://127.0.0.1:8000/v1", "https://api.example.com/v1", "http://[::1]:8000/v1", "http://localhost", "http://a_b/",
    "https://xn--bcher-kva.example/v1/", "http://host.:8080/a%20b",
)  # fmt: skip
INVALID_ADDRESSES = (
    "http://[::1/v1", "http://::1/v1", "http://[::g]/v1", "http://127.0.0.1:99999/v1", "http://host:port/v1", "http:///v1",
    "http://host:0/v1", "http://a..b/v1", "http://-a.b/v1", "http://1.2.3/v1", "http://256.1.1.1/v1", "http://h/v1?x=1",
    "http://h/v1#x", "http://bücher.example/v1", "http://h\x7f/v1", f"http://{'a' * 64}.example/v1", "http://h\\x/v1",
    f"http://{'a.' * 130}example/v1", "http://h:-1/v1", "http://[v1.x]/v1", "http://h%41/v1",
)  # fmt: skip


@pytest.mark.parametrize("url", INVALID_ADDRESSES)
def test_invalid_base_url_is_refused_at_its_position(tmp_path: Path, url: str) -> None:
    path = spec_file(tmp_path, url)
    with pytest.raises(SpecError) as caught:
        load_spec(path)
    assert [(p.key, p.place.file) for p in caught.value.problems] == [("models.m.base_url", str(path))]


@pytest.mark.parametrize(
    "url", ["http://h/v1\n", "http://h/v1 ", "\nhttp://h/v1", "http://a@h/v1", "ftp://h/v1", "http://"]
)
def test_base_url_of_another_form_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(SpecError, match=r"models\.m\.base_url"):
        load_spec(spec_file(tmp_path, url))


@pytest.mark.parametrize("url", VALID_ADDRESSES)
def test_client_accepts_every_valid_address(url: str) -> None:
    assert address_problem(url) is None
    client = make_client(ModelSettings(model="m", base_url=url), "m", 1)
    assert str(client.base_url).startswith(url.rstrip("/"))


# Patterns, and sweeps


@pytest.mark.parametrize(
    "key",
    ["name", "models.m.base_url", "models.m.api_key_env"],
)
def test_value_with_a_final_newline_is_refused(tmp_path: Path, key: str) -> None:
    value = {"name": "tiny", "models.m.base_url": "http://h/v1", "models.m.api_key_env": "KEY"}[key]
    assert f"{key}: " in refused_stderr(tmp_path, f'{key}="{value}\\n"')


def test_number_of_sweep_points_has_a_limit_that_can_be_raised(tmp_path: Path) -> None:
    spec = spec_file(tmp_path, size=2)
    small_sweep = "sweep={seed: [0, 1, 2]}"
    with pytest.raises(SpecError, match="3 combinations"):
        load_specs(spec, [small_sweep, "max_sweep_points=2"])
    assert len(load_specs(spec, [small_sweep, "max_sweep_points=3"])) == 3
    numbers = ", ".join(map(str, range(40)))
    stderr = refused_stderr(tmp_path, f"sweep={{seed: [{numbers}], rollouts.concurrency: [{numbers}]}}", size=2)
    assert "sweep: 1,600 combinations are more than max_sweep_points (1,000)" in stderr


def test_huge_sweep_is_counted_before_it_is_built(tmp_path: Path) -> None:
    sweep = {f"k{n}": list(range(50)) for n in range(60)}
    assert "combinations are more" in refused_stderr(tmp_path, sweep=sweep)


@pytest.mark.parametrize("key", ["seed=1", "~seed", "+seed", ""])
def test_sweep_over_an_invalid_key_is_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(SpecError, match="sweep"):
        load_specs(spec_file(tmp_path, sweep={key: [1]}))


def test_number_of_message_rounds_is_limited(tmp_path: Path) -> None:
    assert "protocol.max_message_rounds: 10001 is too large" in refused_stderr(
        tmp_path, "protocol.max_message_rounds=10001"
    )


@pytest.mark.parametrize(
    ("overrides", "key", "message"),
    [
        (["dataset.labels.right=yes"], "dataset.labels.right", "true is not one of 0, 1"),
        (
            ["budget.usd=1", "models.m={provider: null}"],
            "models.m.provider",
            "nothing is not one of openai, anthropic, human, dummy",
        ),
        (["name=\u201cclaims\u201d"], "name", 'has typographic quotes; use plain ones: "claims"'),
    ],
)
def test_one_mistake_gives_one_problem(tmp_path: Path, overrides: list[str], key: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_spec(spec_file(tmp_path), overrides)
    (problem,) = caught.value.problems
    assert problem.key == key
    assert message in problem.message


def test_spec_named_as_a_protocol_file_gives_one_problem(tmp_path: Path) -> None:
    path = spec_file(tmp_path)
    (tmp_path / "mine.yaml").write_text("extends: spec.yaml\nprotocol: {use: spec.yaml}\n")
    with pytest.raises(SpecError) as caught:
        load_spec(path.with_name("mine.yaml"))
    (problem,) = caught.value.problems
    assert (problem.place.line, problem.key, problem.what) == (2, "protocol.use", "a spec, not a protocol file")


def test_unknown_group_in_the_default_agent_is_reported_even_if_unused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"agents\._default\.model: no model group 'kk'; choose one of m$"):
        load_spec(spec_file(tmp_path, agents={"_default": {"model": "kk"}}))


@pytest.mark.parametrize(("name", "message"), [("/dev/null", "not a regular file"), ("nope.yaml", "built-in specs")])
def test_name_unlike_any_spec_gets_no_suggestion(name: str, message: str) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        load_spec(name)
    assert "did you mean" not in str(caught.value)
