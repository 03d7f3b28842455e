"""Write YAML documents to a folder and load them."""

from __future__ import annotations

from pathlib import Path

from runner.documents.layer_loading import load_layers
from runner.documents.merged_data import LayeredData
from runner.documents.overrides import Override
from tests.support.processes import python


def find_in_folder(name: str, folder: Path) -> Path | None:
    path = folder / name
    return path if path.exists() else None


def write_document(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def load_text(folder: Path, text: str | bytes, *overrides: str) -> LayeredData:
    return load_layers(
        write_document(folder, "a.yaml", text), "a.yaml", [Override(o) for o in overrides], find_in_folder
    )


def list_problems(folder: Path, text: str | bytes, *overrides: str) -> list[str]:
    return [str(problem) for problem in load_text(folder, text, *overrides).problems]


def load_in_process(seconds: float, path: Path) -> str:
    """Load a file in its own process, with limits of memory and time, and return the problems.

    The limits protect the machine against a document that would expand without end.
    """
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n"
        "from pathlib import Path; from runner.documents.layer_loading import load_layers\n"
        "def find(name, folder): return folder / name\n"
        "path = Path(sys.argv[1]); found = load_layers(path, path.name, (), find)\n"
        "print(*found.problems, sep='\\n')\n"
    )
    process = python(code, path, timeout=seconds)
    assert process.returncode == 0, process.stderr[-500:]
    return process.stdout
