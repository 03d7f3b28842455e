"""System calls that fail: `syscall_faults.c` is compiled with gcc and loaded into a process before libc."""

from __future__ import annotations

import errno
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.paths import ROOT


@dataclass(frozen=True)
class Fault:
    """The effect of a fault, on one call or on all calls from then on."""

    name: str
    how: str
    lasts: bool = False

    @property
    def variables(self) -> dict[str, str]:
        return {"NIP_FAULT_HOW": self.how, **({"NIP_FAULT_LASTS": "1"} if self.lasts else {})}


FAULTS = (
    Fault("killed", "kill"),
    Fault("no space, once", str(errno.ENOSPC)),
    Fault("no space, for good", str(errno.ENOSPC), lasts=True),
    Fault("EIO, once", str(errno.EIO)),
    Fault("short, once", "short"),
)


def fault_library(here: Path) -> Path:
    """Compile the library that injects faults."""
    library = here / "faults.so"
    source = ROOT / "tests" / "support" / "syscall_faults.c"
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


def count_kinds(calls: Sequence[str]) -> str:
    counts = Counter(call.partition(" ")[0] for call in calls)
    return ", ".join(f"{count} x {kind}" for kind, count in counts.most_common())
