"""Where the specs, prompts and protocols that travel with the package are, and how a named file is found."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent

PROTOCOLS = _PACKAGE / "protocols"


def root() -> Path:
    """The folder that holds `specs/` and `prompts/`: inside an installed wheel, or the checkout."""
    packaged = _PACKAGE / "builtin_files"
    return packaged if packaged.is_dir() else _PACKAGE.parent


def folders() -> tuple[Path, ...]:
    """The folders of all files that travel with the package."""
    return (PROTOCOLS, root() / "specs", root() / "prompts")


def find(name: str, folder: Path) -> Path | None:
    """A file or folder by the name a spec gives it: beside the spec, else among the built-in ones."""
    candidates = (folder / name, root() / "specs" / name, root() / name)
    return next((path for path in candidates if path.exists()), None)
