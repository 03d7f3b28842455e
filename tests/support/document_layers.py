"""YAML documents written and loaded in a test's own folder."""

from __future__ import annotations

from pathlib import Path

from runner.documents.layer_loading import load_layers
from runner.documents.merged_data import LayeredData
from runner.documents.overrides import Override
from tests.support.processes import python


def beside(name: str, folder: Path) -> Path | None:
    path = folder / name
    return path if path.exists() else None


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def layers(folder: Path, text: str | bytes, *overrides: str) -> LayeredData:
    return load_layers(write(folder, "a.yaml", text), "a.yaml", [Override(o) for o in overrides], beside)


def refused(folder: Path, text: str | bytes, *overrides: str) -> list[str]:
    return [str(problem) for problem in layers(folder, text, *overrides).problems]


def loaded_within(seconds: float, path: Path) -> str:
    """Load in a process of its own with little memory, so that a bomb hurts nobody."""
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n"
        "from pathlib import Path; from runner.documents.layer_loading import load_layers\n"
        "def find(name, folder): return folder / name\n"
        "path = Path(sys.argv[1]); found = load_layers(path, path.name, (), find)\n"
        "print(*found.problems, sep='\\n')\n"
    )
    done = python(code, path, timeout=seconds)
    assert done.returncode == 0, done.stderr[-500:]
    return done.stdout
