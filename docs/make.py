"""Makes what stands in the documentation and is not written by hand: `python docs/make.py`, in a checkout.

`spec-reference.md`: every key, from the schema. The tables of `metrics.md`: from the table of metrics. `terminal.svg`:
commands and what they print, from a real run in a temporary folder by the embedded `dummy` provider, whose answers are
chosen at random: a picture, and no measurement.
"""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

DOCS = Path(__file__).resolve().parent
WIDTH = 92
COMMANDS = (
    "nip-run specs/quickstart.yaml",
    "nip-run show quickstart altitude-band-histogram/2718",
)


def reference(schema: dict[str, Any]) -> str:
    """The page of all keys of a spec."""
    lines = [
        "# Every key of a spec", "",
        "Made from the schema by `python docs/make.py`. GROUP stands for a model group and AGENT for an agent, by the",
        "names that you give them. `nip-run schema` prints the same for editors.",
    ]  # fmt: skip
    for name, section in schema["properties"].items():
        rows = list(_rows(schema, name, section, name in schema["required"]))
        lines += ["", f"## `{name}`", "", section.get("description", ""), "", "| key | type | default | what it is |",
                  "| --- | --- | --- | --- |", *rows]  # fmt: skip
    return "\n".join(lines) + "\n"


def _rows(schema: dict[str, Any], key: str, node: dict[str, Any], required: bool) -> Iterator[str]:
    """A key's row, or those of what is below it."""
    found = _resolved(schema, node)
    each = found.get("additionalProperties")
    if isinstance(each, dict) and "$ref" in json.dumps(each):
        name = {"agents": "AGENT", "models": "GROUP", "training.trainers": "GROUP"}.get(key, "NAME")
        yield from _rows(schema, f"{key}.{name}", each, required)
    elif "properties" in found:
        for name, below in found["properties"].items():
            yield from _rows(schema, f"{key}.{name}", below, name in found.get("required", ()))
    else:
        default = "required" if required else f"`{json.dumps(node['default'])}`" if "default" in node else ""
        cells = (f"`{key}`", _kind(schema, node), default, node.get("description", ""))
        yield "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _resolved(schema: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in node or "anyOf" in node:
        node = schema["$defs"][node["$ref"].rpartition("/")[2]] if "$ref" in node else node["anyOf"][0]
    return node


def _kind(schema: dict[str, Any], node: dict[str, Any]) -> str:
    arms = [_resolved(schema, arm) for arm in node.get("anyOf", [node])]
    words = []
    for arm in arms:
        if "enum" in arm or "const" in arm:
            words.append(", ".join(f"`{value}`" for value in arm.get("enum", [arm.get("const")])))
        else:
            kind = arm.get("type", "any")
            words.append(" or ".join(kind) if isinstance(kind, list) else kind)
    return " or ".join(dict.fromkeys(words))


def with_metric_tables(page: str) -> str:
    """Return a page with its tables of metrics, each between two comments, made again from the table of metrics."""
    return re.sub(
        r"(<!-- metrics: (\w+) -->\n).*?(<!-- end -->)",
        lambda match: match[1] + "\n".join(metric_table(match[2])) + "\n" + match[3],
        page,
        flags=re.DOTALL,
    )


def metric_table(group: str) -> Iterator[str]:
    """Yield the rows of one of the tables: `verdicts`, `blocks`, `agents`, `forecasts` or `calls`."""
    from runner.results.metric_table import METRICS

    yield "| metric | of | is | better | compared |"
    yield "| --- | --- | --- | --- | --- |"
    named: set[str] = set()
    for metric in METRICS.values():
        if metric.base_name in named or metric_group(metric) != group:
            continue
        named.add(metric.base_name)
        is_said = metric.unit in ("", "share", "difference of shares") or metric.unit in metric.description
        unit = "" if is_said else f" ({metric.unit})"
        cells = (
            f"`{metric.base_name}`" + (f" ({metric.symbol})" if metric.symbol else ""),
            metric.over,
            metric.description + unit,
            {1: "larger", -1: "smaller", 0: ""}[metric.better],
            "yes" if metric.is_compared else "",
        )
        yield f"| {' | '.join(cells)} |"


def metric_group(metric: Any) -> str:
    """Return the table of the documentation that has a metric."""
    from runner.results.metric_table import Source

    if metric.source in (Source.BLOCKS, Source.PLAYERS, Source.SEATS):
        return "blocks"
    if metric.source in (Source.FORECASTS, Source.LOGPROBS):
        return "forecasts"
    if metric.source is Source.CALLS:
        return "calls"
    return "agents" if metric.needs_calls or metric.source is Source.AGENTS else "verdicts"


def in_terminal(command: str, folder: str) -> str:
    """What a command writes to a terminal of `WIDTH` columns."""
    parent, child = pty.openpty()
    variables = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(WIDTH), "LINES": "50"}
    variables.pop("NO_COLOR", None)
    words = [sys.executable, "-m", "runner", *command.split()[1:]]
    process = subprocess.Popen(words, cwd=folder, env=variables, stdin=child, stdout=child, stderr=child)
    os.close(child)
    seen = b""
    try:
        while piece := os.read(parent, 65536):
            seen += piece
    except OSError:
        pass  # how Linux says that the other side has closed
    os.close(parent)
    if process.wait() != 0:
        raise SystemExit(f"{command} failed:\n{seen.decode()}")
    return seen.decode()


def picture() -> str:
    """The commands and what they print, as SVG."""
    import io

    from rich.console import Console
    from rich.text import Text

    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    with TemporaryDirectory() as folder:
        for command in COMMANDS:
            written = re.sub(r"\x1b\[[0-9;?]*[A-HJKhl]", "", in_terminal(command, folder)).replace("\r\n", "\n")
            lines = (line.rpartition("\r")[2] for line in written.rstrip().split("\n"))
            shown = "\n".join(line for line in lines if "━" not in line)  # the bar is gone when a run ends
            console.print(Text(f"$ {command}", style="bold"))
            console.print(Text.from_ansi(shown))
            console.print()
    return console.export_svg(title="nip-run, offline: the answers are the dummy provider's", unique_id="nip-run")


def main() -> None:
    sys.path.insert(0, str(DOCS.parent))
    from runner.spec.schemas import experiment_schema

    (DOCS / "spec-reference.md").write_text(reference(experiment_schema()), "utf-8")
    metrics = DOCS / "metrics.md"
    metrics.write_text(with_metric_tables(metrics.read_text("utf-8")), "utf-8")
    (DOCS / "terminal.svg").write_text(picture(), "utf-8")


if __name__ == "__main__":
    main()
