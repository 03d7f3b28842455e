"""Check the scripts of pages with the TypeScript compiler, which finds names of methods and fields that do not exist.

    python .ci/tools/page_scripts.py TSC

TSC is the compiler's program `tsc`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from shared import ROOT, temporary_folder

sys.path.insert(0, str(ROOT))
from runner.pages.html import script

OPTIONS = (
    "--allowJs", "--checkJs", "--noEmit", "--ignoreConfig", "--target", "ES2023", "--lib", "ES2023,DOM,DOM.Iterable",
    "--strict", "false", "--types", "",
)  # fmt: skip
DOM = "interface EventTarget { [name: string]: any }\n"
"""Elements have any field: the scripts do not say which kind of element a selector finds."""


def main() -> int:
    tsc = Path(sys.argv[1])
    with temporary_folder() as here:
        sources = {"pages.js": script(), "questions.js": script("10_dom.js", "questions/form.js"), "dom.d.ts": DOM}
        for name, text in sources.items():
            (here / name).write_text(text, "utf-8")
        done = subprocess.run([tsc, *OPTIONS, *sources], cwd=here, text=True, capture_output=True, check=False)
    print(done.stdout + done.stderr, end="")
    print(f"{len(sources) - 1} scripts have {done.stdout.count(': error TS')} errors")
    return done.returncode


if __name__ == "__main__":
    raise SystemExit(main())
