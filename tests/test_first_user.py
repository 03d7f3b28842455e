"""The first commands of a new user: from an empty folder to the wrong verdicts on the user's own data."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from tests.support.processes import nip_run_here

CLAIMS = [(f"{n} is divisible by 7.", "yes" if n % 7 == 0 else "no") for n in range(300, 350)]


def run_without_warnings(folder: Path, *arguments: str) -> str:
    done = nip_run_here(*arguments, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr
    return done.stdout


def write_claims(folder: Path) -> None:
    with (folder / "data.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("id", "claim", "label"))
        rows.writerows((f"claim-{number}", *claim) for number, claim in enumerate(CLAIMS))


def test_first_user_gets_from_an_empty_folder_to_the_wrong_verdicts(tmp_path: Path) -> None:
    output = run_without_warnings(tmp_path, "init")
    commands = [line.split("#")[0].split()[1:] for line in output.splitlines() if line.startswith("  nip-run ")]
    assert len(commands) == 3
    write_claims(tmp_path)
    check, play, show = (run_without_warnings(tmp_path, *arguments) for arguments in commands)
    assert "50 rollouts" in check
    assert "decided   50 of 50" in play
    run = next((tmp_path / "results" / "runs").iterdir()).name
    wrong_rollouts = json.loads(run_without_warnings(tmp_path, "show", run, "--wrong", "--json", "--all"))["rollouts"]
    query = "SELECT count(*) AS n, count(*) FILTER (NOT correct) AS wrong FROM rollouts"
    (counts,) = json.loads(run_without_warnings(tmp_path, "sql", query, "--json"))
    assert counts == {"n": 50, "wrong": len(wrong_rollouts)}
    assert 0 < len(wrong_rollouts) < 50
    assert all(
        f"claim-{n}" in show for n in range(50) if f"claim-{n}" in str(wrong_rollouts[:20]).replace("'", " ").split()
    )
    assert "wrong" in show


def test_init_with_a_folder_name_creates_a_runnable_spec(tmp_path: Path) -> None:
    assert "cd mine && nip-run check spec.yaml" in run_without_warnings(tmp_path, "init", "mine")
    run_without_warnings(tmp_path, "mine/spec.yaml", "-q", "dataset.limit=2")
