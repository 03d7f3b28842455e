"""Shipped specs load, mistakes are reported at their positions, and saved specs are equivalent."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from runner.base.errors import SpecError
from runner.results.folder import RunFolder
from runner.results.provenance.input_files import resolved_spec, write_inputs
from runner.rollouts.plan import Plan
from runner.spec.loader import Spec, load_spec, load_specs
from tests.support.paths import ROOT

SHIPPED = sorted((ROOT / "specs").glob("*.yaml"))

SPEC = """\
name: tiny
dataset: {path: data.jsonl}
protocol: {use: nip}
prompts: prompts/code_validation/nip
models:
  m: {provider: dummy}
agents:
  prover: {model: m}
  verifier: {model: m}
"""
ROWS = [
    {"id": "a", "question": "q", "solution": "s", "label": 0},
    {"id": "b", "question": "q", "solution": "t", "label": 1},
]


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC)
    return path


def load_problems(path: Path, *overrides: str) -> list[str]:
    """Return the problems of a spec, with file names relative to its folder."""
    with pytest.raises(SpecError) as caught:
        load_specs(path, overrides)
    return [str(problem).replace(f"{path.parent}/", "") for problem in caught.value.problems]


def list_rollout_ids(spec: Spec) -> list[str]:
    return [job.rollout_id for job in Plan(spec).jobs()]


# Shipped specs


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_spec_loads(path: Path) -> None:
    for loaded in load_specs(path):
        assert loaded.dataset.datapoints
        assert loaded.experiment.fine_tune is not None or loaded.experiment.kind == "tournament"


@pytest.mark.full
def test_there_is_a_spec_for_every_protocol_and_for_two_servers() -> None:
    loaded = {path.stem: load_specs(path)[0] for path in SHIPPED}
    protocols = {"nip", "adp", "debate", "merlin_arthur", "mnip", "solo_verifier"}
    assert protocols | {"openai", "vllm", "quickstart"} <= loaded.keys()
    for name in protocols:
        assert loaded[name].protocol.name == name
        assert {model.provider for model in loaded[name].experiment.models.values()} == {"dummy"}
    assert all(model.provider == "openai" for model in loaded["openai"].experiment.models.values())
    assert all(model.base_url for model in loaded["vllm"].experiment.models.values())


def test_shipped_spec_is_found_by_name_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_spec("quickstart.yaml").experiment.name == "quickstart"
    assert load_spec("specs/quickstart.yaml").experiment.name == "quickstart"


def test_user_spec_extends_a_built_in_base(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "extends: base/offline.yaml\nname: mine\nprotocol: {use: solo_verifier}\n"
        "prompts: prompts/code_validation/solo_verifier\nagents: {verifier: {model: offline}}\n"
    )
    assert len(load_spec(path).dataset.datapoints) > 10


def test_misspelled_spec_name_suggests_the_nearest_file(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC)
    assert load_problems(tmp_path / "spce.yaml") == [
        "spce.yaml:1:1: no such spec file, neither here nor among the built-in specs; did you mean 'spec.yaml'?"
    ]


def test_folder_is_refused_as_a_spec(tmp_path: Path) -> None:
    assert "a folder, not a spec; give a .yaml file" in load_problems(tmp_path)[0]


# Mistakes


@pytest.mark.parametrize(
    ("old", "new", "messages"),
    [
        ("name: tiny", "nam: tiny", ["spec.yaml:1:1: (root): missing key: name; add name: nip-code-validation",
                                     "spec.yaml:1:1: nam: unknown key; did you mean 'name'?"]),
        ("name: tiny", "name: [tiny]", [
            "spec.yaml:1:1: name: expected text, not a list; for example name: nip-code-validation"]),
        ("use: nip", "use: debat", [
            "spec.yaml:3:12: protocol.use: no built-in protocol or file 'debat'; did you mean 'debate'?"]),
        ("use: nip", "use: nip, max_message_round: 3", [
            "spec.yaml:3:22: protocol.max_message_round: unknown key; did you mean 'max_message_rounds'?"]),
        ("use: nip", "use: nip, max_message_rounds: '3'", [
            ("spec.yaml:3:22: protocol.max_message_rounds: expected a whole number, not '3'; "
             "for example max_message_rounds: 8")]),
        ("use: nip", "use: nip, sequential: true", [
            "spec.yaml:3:22: protocol.sequential: nip fixes sequential at False; remove protocol.sequential"]),
        ("use: nip", "use: nip, min_message_rounds: 9", [
            "spec.yaml:3:22: protocol.min_message_rounds: 9 is more than max_message_rounds (8); lower it"]),
        ("use: nip", "use: nip, force_guess: two", [
            "spec.yaml:3:22: protocol.force_guess: 'two' is not one of zero, one, y; write one of them"]),
        ("path: data.jsonl", "path: dota.jsonl", [
            ("spec.yaml:2:11: dataset.path: there is no file 'dota.jsonl', and no built-in file of this name; "
            "did you mean 'data.jsonl'?")]),
        ("m: {provider: dummy}", "m: {provider: dumy}", [
            ("spec.yaml:6:7: models.m.provider: 'dumy' is not one of openai, anthropic, human, dummy, replay; "
            "did you mean 'dummy'?")]),
        ("m: {provider: dummy}", "m: {provider: openai}", [
            "spec.yaml:6:3: models.m: missing key: model (the name the server knows); add models.m.model"]),
        ("m: {provider: dummy}", "m: {}", [
            "spec.yaml:6:3: models.m: missing key: model (the name the server knows); add models.m.model"]),
        ("m: {provider: dummy}", "m: {model: x, max_tokens: 1, max_completion_tokens: 1}", [
            ("spec.yaml:6:17: models.m.max_tokens: max_tokens and max_completion_tokens are the same limit; "
            "remove one")]),
        ("m: {provider: dummy}", "m: {model: x, top_logprobs: 5}", [
            "spec.yaml:6:17: models.m.top_logprobs: top_logprobs needs logprobs: true; add it"]),
        ("m: {provider: dummy}", "m: {model: x, logprobs: true, top_logprobs: 21}", [
            "spec.yaml:6:33: models.m.top_logprobs: 21 is too large; must be at most 20"]),
        ("m: {provider: dummy}", "m: {provider: replay}", [
            "spec.yaml:6:3: models.m: missing key: run (the folder of the run to replay); add models.m.run"]),
        ("m: {provider: dummy}", "m: {provider: replay, run: gone}", [
            "spec.yaml:6:25: models.m.run: no run folder 'gone'; list all runs with `nip-run runs`"]),
        ("m: {provider: dummy}", "m: {model: x, base_url: ['http://a:80/v1', 'http://A//v1', 'http://a:80/v1']}", [
            "spec.yaml:6:17: models.m.base_url: http://A//v1 is listed twice, also as http://a:80/v1; remove one",
            "spec.yaml:6:17: models.m.base_url: http://a:80/v1 is listed twice; remove one"]),
        ("m: {provider: dummy}", "m: {model: x, base_url: 'https://me@evil.example'}", [
            ("spec.yaml:6:17: models.m.base_url: 'https://me@evil.example' does not have the form: http:// or https:// "
             "with a host, without user or password, or ??? for an address to enter later; "
             'for example base_url: "http://127.0.0.1:8000/v1"')]),
        ("m: {provider: dummy}", "m: {provider: dummy, temperature: -1}", [
            "spec.yaml:6:24: models.m.temperature: -1 is too small; must be at least 0"]),
        ("m: {provider: dummy}", "m: {provider: dummy, temperature: .nan}", None),
        ("m: {provider: dummy}", "m: {provider: dummy}\n  a b: {provider: dummy}", None),
        ("prover: {model: m}", "prover: {model: mm}", [
            "spec.yaml:8:12: agents.prover.model: no model group 'mm'; did you mean 'm'?"]),
        ("prover: {model: m}", "provr: {model: m}", [
            "spec.yaml:7:1: agents: missing agents of nip: prover; add agents.prover",
            "spec.yaml:8:3: agents.provr: nip has no such agent; did you mean 'prover'?"]),
        ("prover: {model: m}", "prover: 3", [
            ("spec.yaml:8:3: agents.prover: expected a mapping (KEY: VALUE lines), not 3; "
             "its keys are model, max_response_words, freeze, selector, train_scratchpad")]),
        ("prompts: prompts/code_validation/nip", "prompts: nowhere", [
            ("spec.yaml:4:1: prompts: there is no folder 'nowhere', and no built-in folder of this name; "
            "a path in a file starts from the folder of this file, a path in an override from the current folder")]),
        ("name: tiny", "name: tiny\nfine_tune: {agents: [verifier, provr]}", [
            "spec.yaml:2:32: fine_tune.agents: nip has no agent 'provr'; did you mean 'prover'?"]),
        ("name: tiny", """name: tiny
fine_tune:
  replace_verifier_guess_with_true_label: true
  ensure_last_message_is_assistant: false""", [
            "spec.yaml:3:3: fine_tune: replacing a guess needs ensure_last_message_is_assistant; set it to true"]),
        ("name: tiny", "name: tiny\nsweep: {seed: []}", None),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_mistake_in_a_spec_is_reported_at_its_position(
    spec: Path, old: str, new: str, messages: list[str] | None
) -> None:
    assert old in SPEC
    spec.write_text(SPEC.replace(old, new, 1))
    spec_problems = load_problems(spec)
    if messages is not None:
        assert spec_problems == messages


@pytest.mark.parametrize("mistake", [".lable=x", ".unit=messages", ".threshold=abc", "=5"])
def test_mistake_in_the_reading_of_transcripts_is_the_only_problem(mistake: str) -> None:
    (problem,) = load_problems(ROOT / "specs" / "monitors" / "direct.yaml", f"dataset.transcripts{mistake}")
    assert f"dataset.transcripts{mistake.partition('=')[0]}: " in problem


def test_invalid_model_group_name_is_reported_at_its_position(spec: Path) -> None:
    spec.write_text(SPEC.replace("m: {provider: dummy}", "m: {provider: dummy}\n  a b: {provider: dummy}"))
    (message,) = load_problems(spec)
    assert message.startswith("spec.yaml:7:3: models.a b: ")


def test_missing_template_in_a_prompt_folder_is_named(spec: Path) -> None:
    (spec.parent / "mine").mkdir()
    shutil.copy(ROOT / "prompts/code_validation/nip/verifier.jinja", spec.parent / "mine/verifer.jinja")
    shutil.copy(ROOT / "prompts/code_validation/nip/prover.jinja", spec.parent / "mine")
    messages = load_problems(spec, "prompts=" + str(spec.parent / "mine"))
    assert len(messages) == 2
    assert "no template 'mine/verifier.jinja' (No such file or directory)" in messages[0]
    assert "did you mean 'verifer.jinja'?" in messages[0]
    assert "no template 'mine/verifier.last_round.jinja'" in messages[1]


def test_mistakes_in_all_sections_are_reported_together(spec: Path) -> None:
    spec.write_text(
        "name: tiny\nseeed: 1\ndataset: {path: none.jsonl}\nprotocol: {use: debat}\nprompts: nowhere\n"
        "models: {m: {provider: openai}}\nagents: {prover: 3}\nrollouts: {per_datapoint: none}\n"
    )
    messages = load_problems(spec)
    assert [message.split(": ")[1] for message in messages] == [
        "seeed", "dataset.path", "protocol.use", "prompts", "models.m", "agents.prover", "rollouts.per_datapoint",
    ]  # fmt: skip


def test_template_mistakes_are_reported_together_with_spec_mistakes(spec: Path) -> None:
    (spec.parent / "mine").mkdir()
    for name in ("prover", "verifier", "verifier.last_round"):
        (spec.parent / "mine" / f"{name}.jinja").write_text("{{ label }}")
    messages = load_problems(spec, f"prompts={spec.parent / 'mine'}", "models.m.provider=openai")
    assert len(messages) == 4
    assert sum("the label must not reach a prompt" in message for message in messages) == 3


def test_mistake_in_a_base_is_reported_in_the_base_file(spec: Path) -> None:
    (spec.parent / "base.yaml").write_text("# common\nseed: minus one\n")
    spec.write_text("extends: base.yaml\n" + SPEC)
    (message,) = load_problems(spec)
    assert "base.yaml:2:1: seed: expected a whole number, not 'minus one'" in message


@pytest.mark.parametrize("name", ["1.0", "2e0"])
def test_whole_number_written_as_a_float_gives_the_same_rollouts(spec: Path, name: str) -> None:
    loaded = load_spec(spec, [f"seed={name}", f"rollouts.per_datapoint={name}"])
    same = load_spec(spec, [f"seed={int(float(name))}", f"rollouts.per_datapoint={int(float(name))}"])
    assert list_rollout_ids(loaded) == list_rollout_ids(same)


# Sweeps


def test_sweep_is_a_product_in_which_the_first_key_varies_slowest(spec: Path) -> None:
    spec.write_text(SPEC + "sweep: {protocol.max_message_rounds: [2, 4], seed: [5, 6, 7]}\n")
    points = [(s.protocol.max_message_rounds, s.experiment.seed) for s in load_specs(spec)]
    assert points == [(2, 5), (2, 6), (2, 7), (4, 5), (4, 6), (4, 7)]


def test_each_sweep_point_is_a_separate_run(spec: Path) -> None:
    spec.write_text(SPEC + "sweep: {seed: [0, 1, 2]}\n")
    specs = load_specs(spec)
    assert len({Plan(s).run_id for s in specs}) == 3
    assert all(not s.experiment.sweep for s in specs)


def test_load_spec_refuses_a_sweep(spec: Path) -> None:
    spec.write_text(SPEC + "sweep: {seed: [0, 1]}\n")
    with pytest.raises(SpecError, match="sweeps over 2 points; use load_specs"):
        load_spec(spec)


def test_sweep_takes_precedence_over_an_override_of_the_same_key(spec: Path) -> None:
    spec.write_text(SPEC + "sweep: {seed: [3, 4]}\n")
    assert [s.experiment.seed for s in load_specs(spec, ["seed=9", "rollouts.concurrency=2"])] == [3, 4]


def test_mistake_in_a_swept_value_is_reported_at_the_value(spec: Path) -> None:
    spec.write_text(SPEC + "sweep:\n  seed: [0, x]\n  agents.prover.model:\n  - m\n  - n\n")
    assert load_problems(spec) == [
        "spec.yaml:11:13: seed: expected a whole number, not 'x'; for example seed: 0",
        "spec.yaml:14:5: agents.prover.model: no model group 'n'; choose one of m",
    ]


@pytest.mark.parametrize("value", ["plain", "é", "😀 astral", 'quotes " and \\ and \n', "x: {y", "\\${name}", "1e3"])
def test_any_text_can_be_swept(spec: Path, value: str) -> None:
    spec.write_text(SPEC + f"sweep: {{description: [{json.dumps(value, ensure_ascii=False)}, other]}}\n")
    expected = value.replace("\\${", "${")
    assert [s.experiment.description for s in load_specs(spec)] == [expected, "other"]


def test_swept_mapping_replaces_the_whole_mapping(spec: Path) -> None:
    spec.write_text(SPEC + "sweep: {rollouts: [{concurrency: 1}, {per_datapoint: 2}]}\n")
    first, second = load_specs(spec)
    assert (first.experiment.rollouts.concurrency, second.experiment.rollouts.per_datapoint) == (1, 2)


# Paths


def test_paths_are_relative_to_the_file_that_contains_them(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = spec.parent / "deep"
    (deep / "own").mkdir(parents=True)
    (deep / "data.jsonl").write_text(json.dumps({**ROWS[0], "id": "deep"}) + "\n")
    for name in ("prover", "verifier", "verifier.last_round"):
        (deep / "own" / f"{name}.jinja").write_text("own")
    (deep / "base.yaml").write_text("dataset: {path: data.jsonl}\nprompts: own\n")
    elsewhere = spec.parent / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    rest_of_spec = SPEC.replace("dataset: {path: data.jsonl}\n", "").replace(
        "prompts: prompts/code_validation/nip\n", ""
    )
    spec.write_text("extends: deep/base.yaml\n" + rest_of_spec)
    loaded = load_spec(spec)
    assert [point.id for point in loaded.dataset.datapoints] == ["deep"]
    assert loaded.prompts.sources["prover"] == "own"
    spec.write_text("extends: deep/base.yaml\n" + SPEC)
    assert [point.id for point in load_spec(spec).dataset.datapoints] == ["a", "b"]


def test_path_in_an_override_is_relative_to_the_working_directory(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = spec.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "here.jsonl").write_text(json.dumps({**ROWS[0], "id": "here"}) + "\n")
    monkeypatch.chdir(elsewhere)
    assert [p.id for p in load_spec(spec, ["dataset.path=here.jsonl"]).dataset.datapoints] == ["here"]


def test_protocol_file_is_looked_up_in_the_folder_of_the_spec(spec: Path) -> None:
    (spec.parent / "own.yaml").write_text("name: own\nextends: nip\nparameters: {max_message_rounds: 3}\n")
    loaded = load_spec(spec, [])
    spec.write_text(SPEC.replace("use: nip", "use: own.yaml"))
    assert load_spec(spec).protocol.max_message_rounds == 3 != loaded.protocol.max_message_rounds


# The resolved spec


@pytest.mark.full
@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["protocol.max_message_rounds=4", "rollouts.per_datapoint=3", "seed=9"],
        ["dataset.shuffle=true", "dataset.limit=1"],
        ["dataset.columns={id: question, question: id}", "dataset.filter=label = 1"],
        ["description='a ${b} 1e3'", "models.m.stop=['${x}', '1e3']"],
        ["fine_tune={agents: [verifier], formats: [openai, trl]}", "decision_format.lenient=true"],
    ],
    ids=str,
)
def test_resolved_spec_is_valid_and_has_the_same_rollouts(spec: Path, overrides: list[str]) -> None:
    escaped = [override.replace("${", "\\${") for override in overrides]
    first = load_spec(spec, escaped)
    folder = RunFolder(spec.parent / "run")
    write_inputs(Plan(first), folder)
    reloaded = load_spec(folder.spec)
    assert list_rollout_ids(reloaded) == list_rollout_ids(first)
    assert [job.seed for job in Plan(reloaded).jobs()] == [job.seed for job in Plan(first).jobs()]
    assert reloaded.experiment.description == first.experiment.description
    assert reloaded.experiment.models == first.experiment.models
    assert resolved_spec(Plan(reloaded)) == resolved_spec(Plan(first))


@pytest.mark.full
@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_saved_shipped_spec_has_the_same_rollouts(path: Path, tmp_path: Path) -> None:
    first = load_spec(path)
    folder = RunFolder(tmp_path / "run")
    write_inputs(Plan(first), folder)
    reloaded = load_spec(folder.spec)
    assert list_rollout_ids(reloaded) == list_rollout_ids(first)
    assert reloaded.protocol.parameters == first.protocol.parameters


def test_saved_spec_preserves_special_characters_in_datapoints(spec: Path) -> None:
    rows = [{**ROWS[0], "solution": "{{ 7*7 }} ${oc.env:HOME} 😀 \u2028", "when": "2024-01-01", "size": 1.5}]
    (spec.parent / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    first = load_spec(spec)
    folder = RunFolder(spec.parent / "run")
    write_inputs(Plan(first), folder)
    assert load_spec(folder.spec).dataset.datapoints == first.dataset.datapoints


# Identity


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "override",
    ["seed=1", "protocol.max_message_rounds=4", "agents.prover.max_response_words=9", "models.m.temperature=0.5"],
)
def test_keys_that_affect_a_game_change_its_rollout_ids(spec: Path, override: str) -> None:
    assert not set(list_rollout_ids(load_spec(spec))) & set(list_rollout_ids(load_spec(spec, [override])))


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "override", ["description=other", "rollouts.concurrency=1", "retry.transient.attempts=2", "dataset.shuffle=true"]
)
def test_keys_that_do_not_affect_a_game_keep_its_rollout_ids(spec: Path, override: str) -> None:
    assert sorted(list_rollout_ids(load_spec(spec))) == sorted(list_rollout_ids(load_spec(spec, [override])))


def test_longer_run_includes_the_rollouts_of_a_shorter_run(spec: Path) -> None:
    short = list_rollout_ids(load_spec(spec, ["dataset.limit=1"]))
    assert set(short) < set(list_rollout_ids(load_spec(spec, ["rollouts.per_datapoint=2"])))


def test_edited_prompt_changes_all_rollout_ids(spec: Path) -> None:
    folder = spec.parent / "mine"
    shutil.copytree(ROOT / "prompts/code_validation/nip", folder)
    ids_before = list_rollout_ids(load_spec(spec, [f"prompts={folder}"]))
    assert ids_before == list_rollout_ids(load_spec(spec))
    (folder / "prover.jinja").write_text("edited {{ solution }}")
    assert not set(ids_before) & set(list_rollout_ids(load_spec(spec, [f"prompts={folder}"])))
