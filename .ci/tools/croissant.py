"""The description of a dataset's rows, checked and read by the format's own package: `mlcroissant`.

    python .ci/tools/croissant.py [PYTHON_WITH_MLCROISSANT]

Without a Python that has the package, an environment with it is made. Plays a small run, and describes odd columns and
each form of file; the package must find nothing wrong, and load the rows that were played.
"""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import unquote

from runner.api import load_spec, run
from runner.documents.croissant import build_croissant, find_column_kinds
from runner.documents.releases.bundle import open_content
from runner.registry.bundles.runs import build_run_draft
from runner.registry.draft import PublisherChoices
from runner.results.leaderboard.results_folder import Results

_READ = """
import json, sys
import mlcroissant
dataset = mlcroissant.Dataset(jsonld=sys.argv[1])
def plain(value):
    if isinstance(value, bytes):
        return value.decode()
    return [plain(one) for one in value] if hasattr(value, "__len__") and not isinstance(value, str) else value
rows = [
    {name.split("/", 1)[1]: plain(value) for name, value in row.items()} for row in dataset.records("datapoints")
]
found = {"errors": sorted(dataset.metadata.issues.errors), "rows": rows}
print(json.dumps(found, default=lambda value: value.item()))
"""

ODD = [
    {"id": "a-1", "label": 1, "two words %": 3.5, "é": "ß", "yes": True, "list": ["1"]},
    {"id": "b-2", "label": 0, "two words %": 2.0, "é": "\n,\"'", "yes": False, "list": []},
]


def _python(work: Path) -> str:
    if len(sys.argv) > 1:
        return sys.argv[1]
    venv.create(work / "venv", with_pip=True)
    python = str(work / "venv" / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "-q", "mlcroissant>=1.1"], check=True)
    return python


def _check(python: str, folder: Path, expected: list[dict[str, object]]) -> None:
    done = subprocess.run(
        [python, "-c", _READ, "croissant.json"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["errors"] == [], found["errors"]
    rows = [{unquote(name): value for name, value in row.items()} for row in found["rows"]]
    assert rows == expected, (rows[:1], expected[:1])
    print(f"{folder.name}: {len(rows)} rows, nothing wrong")


def main() -> None:
    with TemporaryDirectory() as place:
        work = Path(place)
        python = _python(work)
        folder = run(load_spec("specs/quickstart.yaml", {"dataset.limit": 20}), work / "results").folder
        made = build_run_draft(folder, Results(work / "results"), PublisherChoices("acme", licence="CC-BY-4.0"))
        for path in ("croissant.json", "data/inputs/dataset.jsonl"):
            (work / "run" / path).parent.mkdir(parents=True, exist_ok=True)
            with open_content(made.contents[path]) as file:
                (work / "run" / path).write_bytes(file.read())
        played = [json.loads(line) for line in (folder.path / "inputs" / "dataset.jsonl").read_text().splitlines()]
        _check(python, work / "run", played)
        (work / "odd").mkdir()
        rows = work / "odd" / "dataset.jsonl"
        rows.write_text("".join(json.dumps(row) + "\n" for row in ODD))
        (work / "odd" / "croissant.json").write_bytes(
            build_croissant("odd", "", None, {"dataset.jsonl": rows}, find_column_kinds(ODD))
        )
        _check(python, work / "odd", ODD)


if __name__ == "__main__":
    main()
