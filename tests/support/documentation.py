"""The pages of the documentation, their code blocks with the marks above them, and what `docs/make.py` generates.

A comment directly above a block marks it:

- `<!-- needs: ... -->`: the block is not run, because it needs this.
- `<!-- file: NAME -->`: the reader saves the block under this name.
- `<!-- output -->`: the block before prints this; `...` stands for anything.
- `<!-- ends with: N -->`: the last command of the block ends with this exit code.

`<!-- setup: COMMAND -->`, or commands on lines of their own, runs before the blocks of a page and is not shown.
"""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tests.support.paths import ROOT

_MAKE = runpy.run_path(str(ROOT / "docs" / "make.py"), run_name="make")

generated_pages: Callable[[], dict[str, str]] = _MAKE["generated_pages"]
with_metric_tables: Callable[[str], str] = _MAKE["with_metric_tables"]
executed_notebook: Callable[[str], str] = _MAKE["executed_notebook"]
DOCUMENTED_COMMANDS: tuple[str, ...] = _MAKE["COMMANDS"]

GENERATED = (
    "docs/reference/spec.md",
    "docs/reference/commands.md",
    "docs/reference/tables.md",
    "docs/reference/protocols.md",
    "docs/reference/analyzers.md",
    "docs/reference/recipes.md",
)
MARKS = ("needs", "file", "output", "ends with")

_MARK = re.compile(r" *<!-- ([a-z ]+?)(?:: (.+))? -->")
_FENCE = re.compile(r"( *)```(\w*)")


class Block(NamedTuple):
    """A code block of a page, with the mark above it."""

    language: str
    text: str
    mark: str = ""
    value: str = ""


def pages() -> dict[str, str]:
    """Return the README and every page of the documentation by its path in the repository."""
    paths = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in paths}


def blocks(page: str, language: str | None = None) -> list[Block]:
    """Return the code blocks of a page, or those in one language."""
    return [block for block in _blocks(page) if language in (None, block.language)]


def _blocks(page: str) -> Iterator[Block]:
    mark: tuple[str, str] = ("", "")
    lines = iter(page.splitlines())
    for line in lines:
        fence = _FENCE.fullmatch(line)
        if fence is None:
            match = _MARK.fullmatch(line)
            mark = (match[1], match[2] or "") if match else ("", "")
            continue
        indent = len(fence[1])
        text = [content_line[indent:] for content_line in iter(lambda: next(lines), f"{fence[1]}```")]
        yield Block(fence[2], "".join(f"{content_line}\n" for content_line in text), *mark)
        mark = ("", "")


def find_setup_commands(page: str) -> str:
    """Return the commands that run before the blocks of a page."""
    return "\n".join(text.strip() for text in re.findall(r"<!-- setup:?\s(.*?)-->", page, re.DOTALL))


def prose_words(page: str) -> int:
    """Count the words of a page without code blocks, comments and generated tables."""
    page = re.sub(r"<!-- metrics: .*?<!-- end -->", "", page, flags=re.DOTALL)
    page = re.sub(r"^ *```.*?^ *```$", "", page, flags=re.DOTALL | re.MULTILINE)
    page = re.sub(r"<!--.*?-->|\]\([^)]*\)", " ", page, flags=re.DOTALL)
    return len(re.findall(r"\S*\w\S*", page.replace("|", " ")))


def anchors(page: str) -> set[str]:
    """Return the anchors of a page's headings, which GitHub and MkDocs make alike."""
    text = re.sub(r"^ *```.*?^ *```$", "", page, flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\s-]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def build_script(page: str) -> str:
    """Return a shell script that follows a page: it saves the files and runs the commands that need nothing else."""
    parts = ["set -euo pipefail", find_setup_commands(page), "echo '@@ 0'"]
    for number, block in enumerate(blocks(page), 1):
        if block.mark == "file":
            parts += [
                f"mkdir -p \"$(dirname '{block.value}')\"",
                f"cat > '{block.value}' <<'END OF FILE'",
                block.text + "END OF FILE",
            ]
        elif block.language == "sh" and block.mark != "needs":
            code = int(block.value) if block.mark == "ends with" else 0
            parts += [f"echo '@@ {number}'"]
            parts += [block.text] if not code else ["set +e", block.text, f"[ $? -eq {code} ] || exit 99", "set -e"]
    return "\n".join([*parts, "echo '@@ end'"])


def matches_output(printed: str, expected: str) -> bool:
    """Return whether a text has the parts of another between its `...` in this order, ignoring space between words."""
    text, position = " ".join(printed.split()), 0
    for part in (" ".join(section.split()) for section in re.split(r"^ *\.\.\.$", expected, flags=re.MULTILINE)):
        position = text.find(part, position)
        if position < 0:
            return False
        position += len(part)
    return True


def pair_outputs(page: str, printed: str) -> Iterator[tuple[str, str]]:
    """Yield each output that a page promises, with what the commands before it printed."""
    sections = dict(re.findall(r"^@@ (\w+)\n(.*?)(?=^@@ )", printed, re.DOTALL | re.MULTILINE))
    last = "0"
    for number, block in enumerate(blocks(page), 1):
        if str(number) in sections:
            last = str(number)
        if block.mark == "output":
            yield block.text, sections[last]
