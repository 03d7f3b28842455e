"""A first user's path, with the command line alone: from an empty folder to what went wrong on data of one's own."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from tests.support.processes import nip_run_here

CLAIMS = [(f"{n} is divisible by 7.", "yes" if n % 7 == 0 else "no") for n in range(300, 350)]


def run_without_warnings(folder: Path, *words: str) -> str:
    done = nip_run_here(*words, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr
    return done.stdout


def own_data(folder: Path) -> None:
    with (folder / "data.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("id", "claim", "label"))
        rows.writerows((f"claim-{number}", *claim) for number, claim in enumerate(CLAIMS))


def test_a_first_user_gets_from_an_empty_folder_to_the_wrong_verdicts_on_own_claims(tmp_path: Path) -> None:
    said = run_without_warnings(tmp_path, "init")
    commands = [line.split("#")[0].split()[1:] for line in said.splitlines() if line.startswith("  nip-run ")]
    assert len(commands) == 3
    own_data(tmp_path)
    check, play, show = (run_without_warnings(tmp_path, *words) for words in commands)
    assert "50 rollouts" in check
    assert "decided   50 of 50" in play
    run = next((tmp_path / "results" / "runs").iterdir()).name
    shown = json.loads(run_without_warnings(tmp_path, "show", run, "--wrong", "--json", "--all"))["rollouts"]
    question = "SELECT count(*) AS n, count(*) FILTER (NOT correct) AS wrong FROM rollouts"
    (asked,) = json.loads(run_without_warnings(tmp_path, "sql", question, "--json"))
    assert asked == {"n": 50, "wrong": len(shown)}
    assert 0 < len(shown) < 50
    assert all(f"claim-{n}" in show for n in range(50) if f"claim-{n}" in str(shown[:20]).replace("'", " ").split())
    assert "wrong" in show


def test_the_path_goes_through_a_folder_that_is_named(tmp_path: Path) -> None:
    assert "cd mine && nip-run check spec.yaml" in run_without_warnings(tmp_path, "init", "mine")
    run_without_warnings(tmp_path, "mine/spec.yaml", "-q", "dataset.limit=2")
