"""Check and read the descriptions of dataset rows with the format's own package, `mlcroissant`.

    python .ci/tools/croissant.py [PYTHON_WITH_MLCROISSANT]

If no Python with the package is given, the script creates an environment with it. It plays a small run, and describes
its dataset and one with unusual columns. The package must report no error and load the same rows.
"""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import unquote

from runner import load_spec, run
from runner.documents.croissant import build_croissant, find_column_kinds
from runner.documents.releases.bundle import open_content
from runner.registry.bundles.runs import build_run_draft
from runner.registry.draft import PublisherChoices
from runner.results.leaderboard.results_folder import Results

_READ_SCRIPT = """
import json, sys
import mlcroissant
dataset = mlcroissant.Dataset(jsonld=sys.argv[1])
def plain(value):
    if isinstance(value, bytes):
        return value.decode()
    return [plain(item) for item in value] if hasattr(value, "__len__") and not isinstance(value, str) else value
rows = [
    {name.split("/", 1)[1]: plain(value) for name, value in row.items()} for row in dataset.records("datapoints")
]
report = {"errors": sorted(dataset.metadata.issues.errors), "rows": rows}
print(json.dumps(report, default=lambda value: value.item()))
"""

ODD_ROWS = [
    {"id": "a-1", "label": 1, "two words %": 3.5, "é": "ß", "yes": True, "list": ["1"]},
    {"id": "b-2", "label": 0, "two words %": 2.0, "é": "\n,\"'", "yes": False, "list": []},
]


def _find_python(work: Path) -> str:
    if len(sys.argv) > 1:
        return sys.argv[1]
    venv.create(work / "venv", with_pip=True)
    python = str(work / "venv" / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "-q", "mlcroissant>=1.1"], check=True)
    return python


def _check(python: str, folder: Path, expected: list[dict[str, object]]) -> None:
    process = subprocess.run(
        [python, "-c", _READ_SCRIPT, "croissant.json"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    report = json.loads(process.stdout)
    assert report["errors"] == [], report["errors"]
    rows = [{unquote(name): value for name, value in row.items()} for row in report["rows"]]
    assert rows == expected, (rows[:1], expected[:1])
    print(f"{folder.name}: {len(rows)} rows, nothing wrong")


def main() -> None:
    with TemporaryDirectory() as name:
        work = Path(name)
        python = _find_python(work)
        folder = run(load_spec("specs/quickstart.yaml", {"dataset.limit": 20}), work / "results").folder
        draft = build_run_draft(folder, Results(work / "results"), PublisherChoices("acme", licence="CC-BY-4.0"))
        for path in ("croissant.json", "data/inputs/dataset.jsonl"):
            (work / "run" / path).parent.mkdir(parents=True, exist_ok=True)
            with open_content(draft.contents[path]) as file:
                (work / "run" / path).write_bytes(file.read())
        dataset_rows = [
            json.loads(line) for line in (folder.path / "inputs" / "dataset.jsonl").read_text().splitlines()
        ]
        _check(python, work / "run", dataset_rows)
        (work / "odd").mkdir()
        rows = work / "odd" / "dataset.jsonl"
        rows.write_text("".join(json.dumps(row) + "\n" for row in ODD_ROWS))
        (work / "odd" / "croissant.json").write_bytes(
            build_croissant("odd", "", None, {"dataset.jsonl": rows}, find_column_kinds(ODD_ROWS))
        )
        _check(python, work / "odd", ODD_ROWS)


if __name__ == "__main__":
    main()
