"""Print a pip constraint NAME==FLOOR for the lowest allowed version of each dependency in pyproject.toml."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

settings = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))
project = settings["project"]
requirements = [*settings["build-system"]["requires"], *project["dependencies"]]
requirements += [line for extra in project["optional-dependencies"].values() for line in extra]
for line in sorted(set(requirements)):
    match = re.fullmatch(r"([\w.-]+)(?:\[[\w,]+\])?>=([\w.]+)", line)
    if match is None:
        raise SystemExit(f"pyproject.toml: no floor in {line!r}")
    print(f"{match[1]}=={match[2]}")
