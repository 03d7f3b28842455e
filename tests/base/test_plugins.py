"""Plugins of other distributions: their uses, allowed names and consent to load them."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from runner.documents.fetched_files import MARKER, marker_bytes
from tests.support.plugins import install_plugins, install_template, path_with
from tests.support.processes import nip_run, nip_run_here, python
from tests.support.specs import spec_file

PROVIDERS = "nip_run.providers"
ECHO = {"m": {"provider": "example"}}


def example_spec(folder: Path, **changes: Any) -> Path:
    return spec_file(folder, size=4, models=ECHO, fine_tune=None, **changes)


def read_json(done: CompletedProcess[str]) -> dict[str, object]:
    assert done.returncode == 0, done.stderr
    content: dict[str, object] = json.loads(done.stdout)
    return content


@pytest.mark.gate
def test_the_template_plays_games_computes_a_metric_and_writes_an_export(tmp_path: Path) -> None:
    site = tmp_path / "site"
    install_template(site)
    protocol = {"use": "adp", "max_message_rounds": None}  # the prover speaks before the verifier decides
    spec = example_spec(tmp_path, metrics=["words"], protocol=protocol, prompts="prompts/code_validation/adp")

    def run(*arguments: str) -> CompletedProcess[str]:
        return nip_run(*arguments, cwd=tmp_path, PYTHONPATH=path_with(site))

    rows = read_json(run("plugins", "--json"))["plugins"]
    assert isinstance(rows, list)
    assert [(row["group"].partition(".")[2], row["name"], row["problem"]) for row in rows] == [
        ("providers", "example", None), ("metrics", "words", None), ("exports", "verdicts-csv", None)
    ]  # fmt: skip
    hashes = {row["sha256"] for row in rows}
    assert len(hashes) == 1
    for run_id, settings in {"one": [], "two": ["seed=9", "execution.processes=2"]}.items():
        done = run(str(spec), *settings, "--run-id", run_id)
        assert done.returncode == 0, done.stderr
    folder = tmp_path / "results" / "runs" / "one"
    manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
    pin = {"distribution": "nip-run-example", "version": "1.0", "sha256": hashes.pop()}
    assert manifest["plugins"] == {"nip_run.providers:example": pin, "nip_run.metrics:words": pin}
    metrics = json.loads((folder / "metrics.json").read_text("utf-8"))["metrics"]
    (words_metric,) = (row for row in metrics if row["metric"] == "words")
    assert words_metric["value"] == 6  # of the prover: "It has a bug. Decision: reject"
    query = "SELECT avg((plugin_metrics->>'words')::DOUBLE) AS mean FROM rollouts WHERE run_id = 'one'"
    assert json.loads(run("sql", query, "--json").stdout) == [{"mean": words_metric["value"]}]
    printed = run("show", "one")
    assert f"words     {words_metric['value']:.3f}" in " ".join(printed.stdout.split()).replace("words ", "words     ")
    compared = read_json(run("compare", "one", "two", "--metric", "words", "--json"))
    assert compared["metric"] == "words"
    exported = run("export", "one", "--format", "verdicts-csv", "--out", "csv")
    assert exported.returncode == 0, exported.stderr
    assert len((tmp_path / "csv" / "verdicts.csv").read_text("utf-8").splitlines()) == 5
    unknown_format = run("export", "one", "--format", "verdicts-cvs")
    assert "; did you mean 'verdicts-csv'?" in unknown_format.stderr
    unknown_metric = run("compare", "one", "--assert", "word >= 3")
    assert (unknown_metric.returncode, "; did you mean 'words'?" in unknown_metric.stderr) == (2, True)
    assert run("verify", "one").returncode == 0
    # Without the plugin, the run can be read, but not played.
    assert nip_run("show", "one", cwd=tmp_path).stdout == printed.stdout
    missing = nip_run("check", spec, cwd=tmp_path)
    assert missing.returncode == 2
    assert "models.m.provider" in missing.stderr
    assert "no installed plugin has a metric 'words', and built-in" in missing.stderr


@pytest.mark.full
def test_new_metric_version_recomputes_and_new_provider_version_is_another_run(tmp_path: Path) -> None:
    site = tmp_path / "site"
    install_template(site)
    spec = example_spec(tmp_path, metrics=["words"])
    dummy = spec_file(tmp_path / "dummy", size=4, metrics=["words"])

    def run_id(path: Path) -> object:
        (point,) = json.loads(nip_run("check", path, "--json", cwd=tmp_path, PYTHONPATH=path_with(site)).stdout)
        return point["run_id"]

    first_ids = run_id(spec), run_id(dummy)
    (without_plugins,) = json.loads(nip_run_here("check", dummy, "metrics=[]", "--json", cwd=tmp_path).stdout)
    assert first_ids[1] == without_plugins["run_id"]
    for name in ("old", "new"):
        arguments = (dummy, "--run-id", name) if name == "old" else (dummy, "seed=9", "--run-id", name)
        assert nip_run(*arguments, cwd=tmp_path, PYTHONPATH=path_with(site)).returncode == 0
        shutil.rmtree(site)
        install_template(site, "1.1")
    assert run_id(spec) != first_ids[0]
    assert run_id(dummy) == first_ids[1]
    compare = ("compare", "old", "new", "--metric", "words")
    refused = nip_run(*compare, cwd=tmp_path, PYTHONPATH=path_with(site))
    assert "old and new have 'words' from different versions of its plugin" in refused.stderr
    assert nip_run(dummy, "--run-id", "old", cwd=tmp_path, PYTHONPATH=path_with(site)).returncode == 0
    assert nip_run(*compare, cwd=tmp_path, PYTHONPATH=path_with(site)).returncode == 0


CONNECT = "\n    async def close(self): ...\n\ndef connect(target):\n    return Model()\n"
SPEECHLESS = "return Completion((Choice(7, None),), model='m')"
BAD_PROVIDERS: Mapping[str, tuple[str, str]] = {
    "broken": ("import nowhere\n", "cannot be imported: ModuleNotFoundError: No module named 'nowhere'"),
    "number": ("connect = 3\n", "is an int, but must be a function that takes a ConnectionTarget"),
    "failing": ("def connect(target):\n    raise KeyError('host')\n", "has failed: KeyError: 'host'"),
    "leaving": ("import sys\n\ndef connect(target):\n    sys.exit(3)\n", "has failed: SystemExit: 3"),
    "quitting": (
        f"class Model:\n    async def complete(self, request):\n        raise SystemExit(3)\n{CONNECT}",
        "has failed: SystemExit: 3",
    ),
    "empty": ("def connect(target):\n    return None\n", "returned a NoneType without complete, close"),
    "wrong": (
        f"class Model:\n    async def complete(self, request):\n        return 'yes'\n{CONNECT}",
        "returned a str without choices, model, usage",
    ),
    "speechless": (
        f"from runner import *\n\nclass Model:\n    async def complete(self, _):\n        {SPEECHLESS}\n{CONNECT}",
        "returned a completion without choices, or whose text is not a str or None",
    ),
    "crashing": (
        f"class Model:\n    async def complete(self, request):\n        return 1 / 0\n{CONNECT}",
        "has failed: ZeroDivisionError: division by zero; add -v -v to see where",
    ),
}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in `sys.path` for distributions, whose modules are unloaded after the test."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    yield folder
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(folder)):
            del sys.modules[name]


@pytest.mark.gate
def test_an_error_of_a_provider_names_its_plugin_and_distribution(site: Path, tmp_path: Path) -> None:
    for name, (code, message) in BAD_PROVIDERS.items():
        entry_points = {PROVIDERS: {name: f"bad_{name}:connect"}}
        install_plugins(site, f"dist-{name}", entry_points, {f"bad_{name}.py": code})
        spec = spec_file(tmp_path / name, size=1, models={"m": {"provider": name}})
        assert nip_run_here("check", spec, cwd=tmp_path).returncode == 0, "a check does not import plugins"
        done = nip_run_here(spec, cwd=tmp_path)
        assert done.returncode in (1, 2)
        assert f"provider plugin '{name}' of dist-{name} 1.0" in done.stderr
        assert message in done.stderr, done.stderr
        assert "Traceback" not in done.stderr
    listed = nip_run_here("plugins", cwd=tmp_path)
    assert listed.returncode == 1
    assert "provider plugin 'broken' of dist-broken 1.0 cannot be imported" in listed.stderr


def test_an_export_is_refused_if_its_files_do_not_exist_or_are_elsewhere(site: Path, tmp_path: Path) -> None:
    code = (
        "from runner import WrittenExport\n\ndef write(source, options, target):\n    return WrittenExport({{{}: 1}})\n"
    )
    files = {"missing": "target / 'x.csv'", "elsewhere": "target / '..' / 'spec.yaml'", "number": "3"}
    for name, path in files.items():
        entry_points = {"nip_run.exports": {name: f"{name}_export:write"}}
        install_plugins(site, f"dist-{name}", entry_points, {f"{name}_export.py": code.format(path)})
    assert nip_run_here(spec_file(tmp_path, size=1), "--run-id", "r", cwd=tmp_path).returncode == 0
    for name, problem in {
        "missing": "returned the file out/x.csv, which does not exist",
        "elsewhere": "returned the file out/../spec.yaml, which is not in out",
        "number": "has failed: TypeError",
    }.items():
        done = nip_run_here("export", "r", "--format", name, "--out", "out", cwd=tmp_path)
        assert (done.returncode, done.stdout) == (1, "")
        assert f"export plugin '{name}' of dist-{name} 1.0 {problem}" in done.stderr


def test_reserved_or_duplicate_plugin_name_is_an_error_with_its_distributions(site: Path, tmp_path: Path) -> None:
    install_template(site)
    spec, template = example_spec(tmp_path), nip_run_here("plugins", "--json", cwd=tmp_path)
    assert template.returncode == 0
    install_plugins(site, "rival", {PROVIDERS: {"example": "rival:connect"}}, {"rival.py": "connect = 1"})
    duplicate = nip_run_here("check", spec, cwd=tmp_path)
    assert (
        "models.m.provider: provider plugin 'example' of nip-run-example 1.0: rival 1.0 has a plugin"
        in duplicate.stderr
    )
    shutil.rmtree(site / "rival-1.0.dist-info")
    install_plugins(site, "thief", {PROVIDERS: {"openai": "thief:connect"}}, {"thief.py": "connect = 1"})
    reserved = nip_run_here("check", spec, cwd=tmp_path)
    assert "provider plugin 'openai' of thief 1.0: the name 'openai' is built in" in reserved.stderr
    assert nip_run_here("check", spec, "models.m.provider=dummy", cwd=tmp_path).returncode == 0


@pytest.mark.full
def test_failing_metric_stops_the_run_and_one_without_values_is_left_out(tmp_path: Path) -> None:
    site = tmp_path / "site"
    code = "from runner import PluginMetric\n" + "".join(
        f"{name} = PluginMetric(description='d', compute=lambda rollout: {value}, is_proportion={name == 'half'})\n"
        for name, value in {"nothing": None, "half": 0.5, "fails": "1 / 0", "text": "'x'", "huge": "10**400"}.items()
    )
    code += "accuracy = nothing\nnumber = 3\n"
    names = ("nothing", "half", "fails", "text", "huge", "accuracy", "number")
    for name in names:
        install_plugins(site, f"d-{name}", {"nip_run.metrics": {name: f"m:{name}"}}, {"m.py": code})
    spec = spec_file(tmp_path, size=2, fine_tune=None)
    reserved = nip_run(spec, "metrics=[half]", cwd=tmp_path, PYTHONPATH=path_with(site))
    assert "metric plugin 'accuracy' of d-accuracy 1.0: the name 'accuracy' is built in" in reserved.stderr
    shutil.rmtree(site / "d_accuracy-1.0.dist-info")
    expected = {
        "half": "metric plugin 'half' of d-half 1.0 returned '0.5' for rollout",
        "fails": "metric plugin 'fails' of d-fails 1.0 has failed: ZeroDivisionError",
        "text": "returned 'x' for rollout",
        "huge": "returned '1000000000000000000000000000000000000000' for rollout",
        "number": "m:number is an int, but must be a PluginMetric",
    }
    for name, message in expected.items():
        done = nip_run(spec, f"metrics=[{name}]", "--again", cwd=tmp_path, PYTHONPATH=path_with(site))
        assert done.returncode != 0
        assert message in done.stderr, done.stderr
    done = nip_run(spec, "metrics=[nothing]", "--run-id", "fine", cwd=tmp_path, PYTHONPATH=path_with(site))
    assert done.returncode == 0, done.stderr
    metrics = (tmp_path / "results" / "runs" / "fine" / "metrics.json").read_text("utf-8")
    assert '"metric": "nothing"' not in metrics


def test_a_downloaded_spec_uses_a_plugin_only_with_consent(site: Path, tmp_path: Path) -> None:
    trap = "from pathlib import Path\nPath('imported').touch()\nfrom nip_run_example import connect\n"
    install_template(site)
    install_plugins(site, "trap", {PROVIDERS: {"trap": "trap:connect"}}, {"trap.py": trap})
    download = tmp_path / "got"
    download.mkdir()
    (download / MARKER).write_bytes(marker_bytes("run/acme/x@1", "0" * 64, "file:/r"))
    spec = spec_file(download, size=2, models={"m": {"provider": "trap"}})
    for command in (("check",), ()):
        done = nip_run_here(*command, spec, cwd=tmp_path)
        assert "plugin:trap" in done.stdout + done.stderr
        assert not (tmp_path / "imported").exists()
    assert done.returncode == 2
    assert "--allow-command PROGRAM" in done.stderr
    assert "nip_run.providers:trap, trap 1.0" in done.stderr
    done = nip_run_here(spec, "--allow-command", "plugin:trap", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "imported").exists()


@pytest.mark.full
def test_merge_imports_only_the_plugin_of_the_shards_and_none_for_downloads(site: Path, tmp_path: Path) -> None:
    template = "from pathlib import Path\nfrom runner import PluginMetric\nPath('imported').touch()\n"
    code = template + "WORDS = PluginMetric(description='d', compute=lambda rollout: {})\n"

    def install(version: str) -> None:
        for folder in site.iterdir():
            shutil.rmtree(folder) if folder.is_dir() else folder.unlink()
        entry_points = {"nip_run.metrics": {"words": "words:WORDS"}}
        install_plugins(site, "dist-words", entry_points, {"words.py": code.format(version)}, version)

    def call(*arguments: str | Path) -> CompletedProcess[str]:
        return nip_run(*arguments, cwd=tmp_path, PYTHONPATH=path_with(site))

    spec, run = spec_file(tmp_path, size=4, metrics=["words"], fine_tune=None), tmp_path / "results" / "runs" / "r"
    for shard, version in (("1/2", "1.0"), ("2/2", "2.0")):
        install(version)
        done = call(spec, "--run-id", "r", "--shard", shard)
    assert done.returncode == 1, "the last shard merges the run"
    message = "the shards have the metric 'words' from different versions of its plugin: shard 1/2"
    assert message in done.stderr, done.stderr
    assert "from dist-words 1.0 (sha256 " in done.stderr
    assert "Install dist-words 2.0 (sha256 " in done.stderr
    install("1.0")
    done = call(spec, "--run-id", "r", "--shard", "2/2")  # repeats the command with the other version, which merges
    assert done.returncode == 0, done.stderr
    (run / "metrics.json").unlink()
    install("3.0")
    changed = call("merge", "r")
    assert changed.returncode == 2, changed.stderr
    assert "of dist-words 1.0 (sha256 " in changed.stderr
    assert "but dist-words 3.0 (sha256 " in changed.stderr
    assert "install dist-words 1.0, and repeat the command" in changed.stderr
    install("1.0")
    for marked in (run, run / "shards"):  # without outputs, and without the merged run
        (marked / MARKER).write_bytes(marker_bytes("run/acme/x@1", "0" * 64, "file:/r"))
        (tmp_path / "imported").unlink(missing_ok=True)
        refused = call("merge", "r")
        assert refused.returncode != 0
        assert "its metric 'words' runs the code of a plugin; nothing was run" in refused.stderr, refused.stderr
        assert not (tmp_path / "imported").exists()
        for path in run.iterdir():
            if path.name != "shards":
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        (run / "shards" / "merged.json").unlink(missing_ok=True)
    (run / "shards" / MARKER).unlink()
    assert call("merge", "r").returncode == 0


TRAINER = """
from runner import JobState, JobStatus


class Trainer:
    def __init__(self, group):
        self.group = group

    def submit(self, job, notes, save_note):
        save_note({"id": job.key})
        return {"id": job.key}

    def poll(self, job, handle):
        return JobStatus(JobState.SUCCEEDED, f"{job.base_model}-{self.group.trainer.n_epochs}-{job.key}")
"""
TONE = """
name: tone
unit: message
question: Is this polite?
code: tone.py:answer
"""


@pytest.mark.gate
def test_a_training_backend_trains_and_an_analyzer_answers(site: Path, tmp_path: Path) -> None:
    entry_points = {
        "nip_run.backends": {"mine": "mine:Trainer"},
        "nip_run.analyzers": {"tone": "mine:TONE", "lost": "mine:LOST"},
    }
    paths = "from pathlib import Path\nTONE = Path(__file__).with_name('tone.yaml')\nLOST = 'lost.yaml'\n"
    files = {"mine.py": paths + TRAINER, "tone.yaml": TONE, "tone.py": "def answer(unit):\n    return 'yes'\n"}
    install_plugins(site, "mine", entry_points, files)
    spec = spec_file(
        tmp_path, size=4, kind="training", fine_tune=None, agents={"verifier": {"freeze": True, "model": "judge"}},
        models={"judge": {"provider": "dummy"}},
        training={
            "iterations": 1, "method": "expert_iteration", "min_examples": 1, "test": {"scheme": "none"},
            "selection": {"reward_threshold": 0}, "trainers": {"m": {"backend": "mine", "n_epochs": 2}},
        },
    )  # fmt: skip
    done = nip_run_here(spec, "--run-id", "trained", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    manifest = json.loads((tmp_path / "results" / "runs" / "trained" / "manifest.json").read_text("utf-8"))
    assert list(manifest["plugins"]) == ["nip_run.backends:mine"]
    assert "-2-" in json.dumps(manifest["training"])
    analyzed = nip_run_here("analyze", "trained-i0", "tone", "--json", cwd=tmp_path)
    assert analyzed.returncode == 0, analyzed.stderr
    assert '"tone"' in analyzed.stdout
    lost = nip_run_here("analyze", "trained-i0", "lost", cwd=tmp_path)
    assert "analyzer plugin 'lost' of mine 1.0: mine:LOST is a str, but must be the path of a YAML file" in lost.stderr


@pytest.mark.gate
def test_entry_points_are_not_read_if_all_names_are_built_in(tmp_path: Path) -> None:
    spec = spec_file(tmp_path, size=2)
    code = (
        "import sys, importlib.metadata as m\nm.entry_points = None\nfrom runner.cli.main import main\n"
        f"assert main(['check', {str(spec)!r}]) == 0\nassert main([{str(spec)!r}, '-q']) == 0"
    )
    done = python(code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
