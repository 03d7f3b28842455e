"""Distributions with plugins, written as files: no pip is needed."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path

from tests.support.documentation import blocks, pages
from tests.support.guard import guard_variables

PAGE = "docs/how-to/write-a-plugin.md"


def install_plugins(
    site: Path, name: str, entry_points: Mapping[str, Mapping[str, str]], files: Mapping[str, str], version: str = "1.0"
) -> None:
    """Write a distribution with these entry points by group, and these files, into a folder."""
    information = site / f"{name.replace('-', '_')}-{version}.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", "utf-8")
    lines = (
        f"[{group}]\n" + "".join(f"{entry} = {value}\n" for entry, value in entries.items())
        for group, entries in entry_points.items()
    )
    (information / "entry_points.txt").write_text("\n".join(lines), "utf-8")
    for path, text in files.items():
        (site / path).write_text(text, "utf-8")


def install_template(site: Path, version: str | None = None) -> None:
    """Install the package that the documentation shows, as its `pyproject.toml` describes it."""
    files = {block.value: block.text for block in blocks(pages()[PAGE]) if block.mark == "file"}
    project = tomllib.loads(files.pop("pyproject.toml"))["project"]
    install_plugins(site, project["name"], project["entry-points"], files, version or project["version"])


def path_with(site: Path) -> str:
    """Return a `PYTHONPATH` for a process of the command line that finds the distributions in a folder."""
    return os.pathsep.join((guard_variables()["PYTHONPATH"], str(site)))
