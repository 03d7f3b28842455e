"""Simulated datasets of programs, clean or with a leak, for tests and measurements of the leak audit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from runner.curation.audit.items import AuditItem
from runner.curation.audit.report import AuditReport, AuditSettings, audit_items

ITEMS = 200
NAMES = (
    "total", "count", "value", "index", "left", "right", "items", "key", "node", "data", "cache", "buffer", "limit",
    "offset", "width", "depth",
)  # fmt: skip

Random = np.random.Generator
Plant = Callable[[list[AuditItem], Random], list[AuditItem]]


def program(rng: Random, lines: int | None = None) -> str:
    """Return a random program of assignments, some of them with comments."""
    code = [f"def {rng.choice(NAMES)}_{rng.integers(1000)}({rng.choice(NAMES)}):"]
    for _ in range(rng.integers(4, 15) if lines is None else lines):
        comment = f"  # {rng.choice(NAMES)} {rng.choice(NAMES)}" if rng.random() < 0.2 else ""
        code.append(
            f"    {rng.choice(NAMES)} = {rng.choice(NAMES)} {rng.choice(list('+-*/'))} {rng.integers(100)}{comment}"
        )
    return "\n".join(code) + "\n"


def edit(code: str, rng: Random) -> str:
    """Return a program with another number in a random line."""
    lines = code.splitlines()
    index = int(rng.integers(1, len(lines)))
    head, _, comment = lines[index].partition("  #")
    lines[index] = f"{head.rsplit(' ', 1)[0]} {rng.integers(100, 200)}" + (f"  #{comment}" if comment else "")
    return "\n".join(lines) + "\n"


def item(number: int, label: int, group: int, code: str, rng: Random) -> AuditItem:
    columns = {
        "question": f"problem {group} about {rng.choice(NAMES)}",
        "solution": code,
        "level": str(rng.choice(["easy", "medium", "hard"])),
        "rating": int(rng.integers(1000)),
    }
    return AuditItem(f"item-{number}", label, f"g{group}", ("train", "test")[group % 2], columns)


def single(rng: Random, size: int = ITEMS) -> list[AuditItem]:
    """Return items without siblings."""
    return [item(number, int(rng.integers(2)), number, program(rng), rng) for number in range(size)]


def pairs(rng: Random, size: int = ITEMS) -> list[AuditItem]:
    """Return a right and a wrong version of each program; each is an edit of one that is not in the dataset."""
    items = []
    for group in range(size // 2):
        base = program(rng)
        items += [item(2 * group + label, label, group, edit(base, rng), rng) for label in (0, 1)]
    return items


def uneven(rng: Random, size: int = ITEMS) -> list[AuditItem]:
    """Return groups of one to six versions with a common difficulty, so that labels within a group are correlated."""
    items: list[AuditItem] = []
    group = 0
    while len(items) < size:
        base, share, lines = program(rng), rng.beta(0.7, 0.7), rng.integers(1, 7)
        versions = [edit(base, rng) for _ in range(lines)]
        items += [item(len(items) + i, int(rng.random() < share), group, code, rng) for i, code in enumerate(versions)]
        group += 1
    return items[:size]


def triples(rng: Random, size: int = ITEMS) -> list[AuditItem]:
    """Return three versions of each program, one or two of them wrong."""
    items = []
    for group in range(size // 3):
        base = program(rng)
        labels = rng.permutation([0, 1, int(rng.integers(2))])
        items += [item(3 * group + i, int(label), group, edit(base, rng), rng) for i, label in enumerate(labels)]
    return items


CLEAN = {"single items": single, "pairs": pairs, "uneven groups": uneven, "triples": triples}


def rewritten(items: list[AuditItem], rng: Random) -> list[AuditItem]:
    """Return three versions of each program: a right one, a wrong one with an edit, a right one with four edits."""
    versions = []
    for start in range(0, len(items), 3):
        base = items[start].columns["solution"]
        refactored = base
        for _ in range(4):
            refactored = edit(refactored, rng)
        for original, label, code in zip(
            items[start : start + 3], (1, 0, 1), (base, edit(base, rng), refactored), strict=True
        ):
            columns = {**original.columns, "solution": code}
            versions.append(replace(original, label=label, columns=columns))
    return versions


def changed_code(change: Callable[[str, Random], str], share: float = 1.0) -> Plant:
    """Return a plant that changes this share of the wrong programs."""

    def plant(items: list[AuditItem], rng: Random) -> list[AuditItem]:
        return [
            replace(audit_item, columns={**audit_item.columns, "solution": change(audit_item.columns["solution"], rng)})
            if audit_item.label == 0 and rng.random() < share
            else audit_item
            for audit_item in items
        ]

    return plant


def added_column(value: Callable[[int, Random], object]) -> Plant:
    return lambda items, rng: [
        replace(audit_item, columns={**audit_item.columns, "extra": value(audit_item.label or 0, rng)})
        for audit_item in items
    ]


def copied(items: list[AuditItem], rng: Random, changes: int, *, same_label: bool) -> list[AuditItem]:
    """Replace the last item by the first in the other split, with a number of edited lines."""
    code = "\n".join([items[0].columns["solution"], *program(rng, 12).splitlines()[1:]]) + "\n"
    first = replace(items[0], columns={**items[0].columns, "solution": code})
    for _ in range(changes):
        code = edit(code, rng)
    label = first.label if same_label else 1 - (first.label or 0)
    copy = replace(
        first, id="copy", label=label, group="copy", split="test", columns={**first.columns, "solution": code}
    )
    return [replace(first, split="train"), *items[1:-1], copy]


def add_lines(count: int) -> Callable[[str, Random], str]:
    return lambda code, rng: code + "".join(program(rng, count).splitlines(keepends=True)[1:])


def add_comment(code: str, rng: Random) -> str:
    return code.replace("\n", f"  # {rng.choice(NAMES)} {rng.choice(NAMES)}\n", 1)


def lengthen_names(code: str, _: Random) -> str:
    for name, longer in (("count", "running_count"), ("index", "current_index"), ("value", "last_value")):
        code = code.replace(name, longer)
    return code


def repeat_lines(code: str, _: Random) -> str:
    """Replace the second half of the lines by copies of the first half."""
    lines = code.splitlines()
    first_half = lines[1 : 1 + len(lines) // 2]
    return "\n".join([lines[0], *first_half, *first_half]) + "\n"


def predicts(*measures: str) -> Callable[[AuditReport], bool]:
    return lambda report: any(test.measure in measures and report.is_leak(test) for test in report.tests)


class Leak(NamedTuple):
    """A leak that is planted in a clean dataset, and whether a report finds it."""

    simulate: Callable[[Random], list[AuditItem]]
    plant: Plant
    is_found: Callable[[AuditReport], bool]


LEAKS: Mapping[str, Leak] = {
    "length: 3 more lines in wrong programs, which otherwise have 9 on average": Leak(
        single, changed_code(add_lines(3)), predicts("length")
    ),
    "length, pairs: one more line in half of the wrong versions": Leak(
        pairs, changed_code(add_lines(1), 0.5), predicts("length")
    ),
    "comments: one more in wrong programs, which otherwise have 1.8 on average": Leak(
        single, changed_code(add_comment), predicts("comments")
    ),
    "comments, pairs: one more in 30 % of the wrong versions": Leak(
        pairs, changed_code(add_comment, 0.3), predicts("comments")
    ),
    "identifiers: 3 of 16 names are longer in wrong programs": Leak(
        single, changed_code(lengthen_names), predicts("identifier length")
    ),
    "words: 25 % of wrong programs use a name that no other program has": Leak(
        single, changed_code(lambda code, _: f"{code}    legacy = 1\n", 0.25), predicts("words", "strongest word")
    ),
    "words, pairs: 20 % of wrong versions use a name that no other version has": Leak(
        pairs, changed_code(lambda code, _: f"{code}    legacy = 1\n", 0.2), predicts("words", "strongest word")
    ),
    "compressibility: the second half of half of the wrong programs repeats the first half": Leak(
        single, changed_code(repeat_lines, 0.5), predicts("compressibility")
    ),
    "edits: a wrong version is one edit from a right version, the other right version is four edits away": Leak(
        triples, rewritten, predicts("edit distance", "edit position")
    ),
    "category: `hard` has probability 0.8 in wrong and 0.45 in right programs": Leak(
        single,
        added_column(lambda label, rng: "hard" if rng.random() < 0.8 - 0.35 * label else "easy"),
        predicts("value"),
    ),
    "number: normal, with a mean that differs by 0.7 standard deviations": Leak(
        single, added_column(lambda label, rng: float(rng.normal(0.7 * label))), predicts("value")
    ),
    "determining column: the name of the model that wrote the program": Leak(
        single,
        added_column(lambda label, rng: f"model-{label}-{rng.integers(2)}"),
        lambda report: any(test.determines_label for test in report.tests if report.is_leak(test)),
    ),
    "duplicate: one program of 200 is in both splits": Leak(
        single, lambda items, rng: copied(items, rng, 0, same_label=True), lambda report: bool(report.duplicates)
    ),
    "near-duplicate: one program of 200 is in both splits, with an edited line": Leak(
        single, lambda items, rng: copied(items, rng, 1, same_label=True), lambda report: bool(report.duplicates)
    ),
    "contradiction: one program of 200 has both labels": Leak(
        single, lambda items, rng: copied(items, rng, 0, same_label=False), lambda report: bool(report.contradictions)
    ),
}  # fmt: skip


def measure_power(leak: Leak, times: int, seed: int) -> float:
    """Return how often the audit finds a leak, as a share of datasets with it."""
    rng = np.random.default_rng([seed, 1])
    is_found = [leak.is_found(audit(leak.plant(leak.simulate(rng), rng))) for _ in range(times)]
    return sum(is_found) / times


def measure_false_alarms(simulate: Callable[[Random], list[AuditItem]], times: int, seed: int) -> float:
    """Return how often the audit reports a finding, as a share of clean datasets."""
    rng = np.random.default_rng([seed, 0])
    return sum(bool(audit(simulate(rng)).findings) for _ in range(times)) / times


def audit(items: list[AuditItem]) -> AuditReport:
    return audit_items(items, AuditSettings())
