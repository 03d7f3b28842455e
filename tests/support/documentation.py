"""What `docs/make.py` makes, loaded from where it stands."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from typing import Any

from tests.support.paths import ROOT

_MAKE = runpy.run_path(str(ROOT / "docs" / "make.py"), run_name="make")

reference: Callable[[dict[str, Any]], str] = _MAKE["reference"]
with_metric_tables: Callable[[str], str] = _MAKE["with_metric_tables"]
SHOWN: tuple[str, ...] = _MAKE["COMMANDS"]
