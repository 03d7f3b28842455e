"""`nip-run plot`: figures of finished runs, their rows, and errors for runs without the data."""

from __future__ import annotations

import csv
import json
import re
import shutil
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from runner.cli.main import main
from runner.cli.results.plot import FIGURES as NAMED
from runner.pages.figures.catalog import FIGURES
from tests.support.paths import ROOT
from tests.support.runs import run_spec
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file
from tests.support.training import run_training, training_spec

SPECS = ROOT / "specs"
V0_1_0_RUNS = ROOT / "tests" / "fixtures" / "v0_1_0" / "results" / "runs"
SMALL_SIZE = ("dataset.limit=4", "rollouts.per_datapoint=2")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Play two seeds with stated confidence and the solo verifier, and add a training run of 0.1.0."""
    folder = tmp_path_factory.mktemp("plotted")
    for seed in (0, 1):
        overrides = ("name=sure", f"seed={seed}", "verdict.confidence=stated")
        run_spec(SPECS / "quickstart.yaml", folder / "results", *SMALL_SIZE, *overrides)
    run_spec(SPECS / "solo_verifier.yaml", folder / "results", *SMALL_SIZE)
    for path in V0_1_0_RUNS.glob("learning-*"):
        shutil.copytree(path, folder / "results" / "runs" / path.name)
    return folder / "results"


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Play three seeds of a training run that is tested at the start and after each of two iterations."""
    folder = tmp_path_factory.mktemp("trained")
    for seed in (0, 1, 2):
        spec = training_spec(
            folder / f"training{seed}", seed=seed, training={"test": {"scheme": "all", "split": "test"}}
        )
        run_training(spec, folder / "results")
    return folder / "results"


def find_run_ids(results: Path, name: str) -> list[str]:
    return sorted(
        path.name for path in (results / "runs").iterdir() if re.fullmatch(rf"{name}-[0-9a-f]{{10}}", path.name)
    )


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def plot(results: Path, figure: str, names: list[str], path: Path, *more: str) -> int:
    return main(["plot", figure, *names, "-o", str(path), "--results", str(results), *more])


def test_help_lists_all_figures() -> None:
    assert tuple(FIGURES) == NAMED


@pytest.mark.full
@pytest.mark.parametrize("figure", [name for name in NAMED if name != "learning_curve"])
def test_every_figure_of_one_system_is_a_reproducible_svg(results: Path, tmp_path: Path, figure: str) -> None:
    for name in ("one.svg", "two.svg"):
        assert plot(results, figure, find_run_ids(results, "sure"), tmp_path / name) == 0
    image = (tmp_path / "one.svg").read_bytes()
    assert image == (tmp_path / "two.svg").read_bytes()
    assert ET.fromstring(image.decode()).get("width") == "3.25in"


@pytest.mark.full
def test_seeds_of_one_system_are_pooled_as_on_the_leaderboard(results: Path, tmp_path: Path) -> None:
    seeds = find_run_ids(results, "sure")
    assert len(seeds) == 2
    assert plot(results, "forest", [*seeds, *find_run_ids(results, "solo-verifier")], tmp_path / "f.csv") == 0
    pooled, lone = read_csv(tmp_path / "f.csv")
    assert (pooled["system"], pooled["runs"], pooled["n"]) == ("nip", " ".join(seeds), "16")
    assert (lone["system"], lone["n"]) == ("solo_verifier", "8")


@pytest.mark.full
def test_figure_notes_how_many_games_were_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with run_chat_server(malformed="returns x + 3.") as server:
        path = spec_file(
            tmp_path, server.base_url, size=6, fine_tune=None, rollouts={"max_transport_failed": 1.0},
        )  # fmt: skip
        run_spec(path, tmp_path / "results", run_id="partial")
    assert plot(tmp_path / "results", "accuracy_by_protocol", ["partial"], tmp_path / "figure.svg") == 0
    assert "1 rollout lost in transport and not counted" in capsys.readouterr().err


@pytest.mark.full
def test_runs_on_different_datapoints_are_not_pooled_as_seeds(tmp_path: Path) -> None:
    run_spec(SPECS / "quickstart.yaml", tmp_path, "dataset.limit=2", "seed=0")
    run_spec(SPECS / "quickstart.yaml", tmp_path, "dataset.limit=2", "seed=1")
    run_spec(SPECS / "quickstart.yaml", tmp_path, "dataset.limit=6", "seed=2")
    assert plot(tmp_path, "forest", find_run_ids(tmp_path, "quickstart"), tmp_path / "f.csv") == 0
    assert sorted(row["n"] for row in read_csv(tmp_path / "f.csv")) == ["4", "6"]


def test_solo_verifier_is_used_as_the_baseline(results: Path, tmp_path: Path) -> None:
    assert plot(results, "accuracy_by_protocol", find_run_ids(results, "sure")[:1], tmp_path / "f.json") == 0
    document = json.loads((tmp_path / "f.json").read_bytes())
    assert [(row["system"], row["is_baseline"]) for row in document["rows"]] == [
        ("nip", False),
        ("solo_verifier", True),
    ]
    assert document["notes"] == []


@pytest.mark.full
def test_a_learning_curve_pools_the_tests_of_its_seeds(seeds: Path, tmp_path: Path) -> None:
    names = find_run_ids(seeds, "learn")
    assert plot(seeds, "learning_curve", names, tmp_path / "f.csv") == 0
    rows = read_csv(tmp_path / "f.csv")
    assert [(row["iteration"], row["seeds"], row["n"]) for row in rows] == [(str(i), "3", "18") for i in range(3)]
    assert {row["runs"] for row in rows} == {" ".join(names)}
    assert all(float(row["ci_low"]) <= float(row["value"]) <= float(row["ci_high"]) for row in rows)
    other_run = run_training(
        training_spec(
            tmp_path / "other",
            seed=3,
            training={"test": {"scheme": "all", "split": "test"}, "datapoints_per_iteration": 2},
        ),
        seeds,
    )
    assert plot(seeds, "learning_curve", [*names, other_run.run_id], tmp_path / "g.csv") == 0
    assert {row["seeds"] for row in read_csv(tmp_path / "g.csv")} == {"3", "1"}
    arguments = ("--title", "Expert iteration", "--width", "page")
    assert plot(seeds, "learning_curve", names, tmp_path / "f.svg", *arguments) == 0
    assert "Expert iteration" in (tmp_path / "f.svg").read_text("utf-8")


@pytest.mark.parametrize(
    ("figure", "run_name", "expected"),
    [
        ("learning_curve", "sure", "not a training run"),
        ("accuracy_by_protocol", "learning", "a training run or tournament has no games of its own"),
        ("reliability", "solo-verifier", "a reliability curve needs probabilities of verdicts"),
    ],
)
def test_missing_data_is_reported_with_the_run_ids(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], figure: str, run_name: str, expected: str
) -> None:
    names = find_run_ids(results, run_name)
    assert plot(results, figure, names, tmp_path / "f.svg") == 2
    message = capsys.readouterr().err
    assert expected in message.replace("\n", " ")
    assert all(name in message for name in names)
    assert not (tmp_path / "f.svg").exists()


@pytest.mark.full
def test_always_failed_is_not_plotted_for_runs_with_different_numbers_of_repeats(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        plot(
            results,
            "always_failed",
            [*find_run_ids(results, "sure"), *find_run_ids(results, "solo-verifier")],
            tmp_path / "f.svg",
        )
        == 2
    )
    assert "nip 4, solo_verifier 2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rounds", "-o", "f.gif"], "must end in .svg, .pdf or .png"),
        (["differences", "-o", "f.svg"], "the figure differences shows two runs, not 1"),
        (["rounds", "-o", "f.svg", "--metric", "recall"], "leave out --metric, or plot forest, frontier"),
        (["forest", "-o", "f.svg", "--metric", "accurcy"], "no metric 'accurcy'; did you mean 'accuracy'?"),
        (
            ["frontier", "-o", "f.svg", "--metric", "prover.rewrd"],
            "no metric 'prover.rewrd'; did you mean 'prover.rewar",
        ),
    ],
)
def test_plot_usage_errors_exit_2_with_the_reason(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    arguments: list[str], message: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert (
        main(["plot", arguments[0], find_run_ids(results, "sure")[0], *arguments[1:], "--results", str(results)]) == 2
    )
    assert message in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.full
def test_plotted_differences_match_compare(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [find_run_ids(results, "solo-verifier")[0], find_run_ids(results, "sure")[0]]
    assert plot(results, "differences", runs, tmp_path / "f.csv") == 0
    capsys.readouterr()
    assert main(["compare", *runs, "--results", str(results), "--json"]) == 0
    [compared] = json.loads(capsys.readouterr().out)["pairs"]
    [accuracy] = [row for row in read_csv(tmp_path / "f.csv") if row["metric"] == "accuracy"]
    assert float(accuracy["difference"]) == pytest.approx(compared["difference"])
    assert float(accuracy["ci_low"]) == pytest.approx(compared["ci_low"])


def test_protocol_figure_shows_the_speakers(results: Path, tmp_path: Path) -> None:
    runs = find_run_ids(results, "sure")
    assert plot(results, "protocol", runs, tmp_path / "f.svg") == 0
    image = ET.fromstring((tmp_path / "f.svg").read_text("utf-8"))
    assert image.get("width") == "3.25in"
    assert {"prover", "verifier", "verifier may decide"} <= {
        text.text for text in image.iter() if text.tag.endswith("text")
    }
    assert plot(results, "protocol", runs, tmp_path / "f.csv") == 0
    assert [(row["agent"], row["heard_by"]) for row in read_csv(tmp_path / "f.csv")][:2] == [
        ("verifier", "prover"), ("prover", "verifier")
    ]  # fmt: skip


@pytest.mark.parametrize("suffix", ["pdf", "png"])
def test_missing_image_package_is_named_with_its_install_command(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    assert plot(results, "outcomes", find_run_ids(results, "solo-verifier"), tmp_path / f"f.{suffix}") == 2
    assert "pip install 'nip-run[figures]'" in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / f"f.{suffix}").exists()


def test_plot_json_contains_the_rows_and_quiet_prints_nothing(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [lone] = find_run_ids(results, "solo-verifier")
    assert plot(results, "outcomes", [lone], tmp_path / "f.svg", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert sum(row["games"] for row in document["rows"]) == 8
    assert plot(results, "outcomes", [lone], tmp_path / "f.svg", "-q") == 0
    assert capsys.readouterr().out == ""
