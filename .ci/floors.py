"""Prints the floor of every dependency in pyproject.toml as the one version that pip may take: NAME==FLOOR."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

settings = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))
project = settings["project"]
wanted = [*settings["build-system"]["requires"], *project["dependencies"]]
wanted += [line for extra in project["optional-dependencies"].values() for line in extra]
for line in sorted(set(wanted)):
    found = re.fullmatch(r"([\w.-]+)(?:\[[\w,]+\])?>=([\w.]+)", line)
    if found is None:
        raise SystemExit(f"pyproject.toml: no floor in {line!r}")
    print(f"{found[1]}=={found[2]}")
