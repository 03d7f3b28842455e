"""Check the leak audit: false alarms in clean datasets at most 5 %, and planted leaks found with power at least 0.9.

    python benchmarks/leak_audit.py [--times N] [--seed S]

N datasets of 200 items are simulated in each situation, and audited as `nip-run audit` does, with Holm's correction for
all checks of one audit. In clean datasets, labels say nothing beyond what the groups allow. Each leak is planted in the
strength that its description states, in a dataset that is otherwise clean.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from time import process_time

import numpy as np
from common import sample_arguments

from runner.curation.audit.items import AuditItem
from runner.curation.audit.report import AuditReport, AuditSettings, audit_items
from tests.support.soft_assertions import SoftAssertions

ITEMS = 200
NAMES = "total count value index left right items key node data cache buffer limit offset width depth".split()

Random = np.random.Generator
Plant = Callable[[AuditItem, Random], AuditItem]


def program(rng: Random, lines: int | None = None) -> str:
    """Return a random program of assignments, some of them with comments."""
    code = [f"def {rng.choice(NAMES)}_{rng.integers(1000)}({rng.choice(NAMES)}):"]
    for _ in range(rng.integers(4, 15) if lines is None else lines):
        comment = f"  # {rng.choice(NAMES)} {rng.choice(NAMES)}" if rng.random() < 0.2 else ""
        code.append(f"    {rng.choice(NAMES)} = {rng.choice(NAMES)} {rng.choice(list('+-*/'))} {rng.integers(100)}{comment}")
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


def with_code(changed: Callable[[str, Random], str], label: int = 0, share: float = 1.0) -> Plant:
    """Return a plant that changes a share of the programs with a label."""

    def plant(one: AuditItem, rng: Random) -> AuditItem:
        if one.label != label or rng.random() >= share:
            return one
        return replace(one, columns={**one.columns, "solution": changed(one.columns["solution"], rng)})

    return plant


def with_column(name: str, value: Callable[[int, Random], object]) -> Plant:
    return lambda one, rng: replace(one, columns={**one.columns, name: value(one.label or 0, rng)})


def longer(code: str, rng: Random) -> str:
    return code + "".join(program(rng, 4).splitlines(keepends=True)[1:])


def commented(code: str, _: Random) -> str:
    return code.replace("\n", "  # data index\n", 1)


def renamed(code: str, _: Random) -> str:
    return code.replace("count", "running_count").replace("index", "current_index").replace("value", "old_value")


def repeated(code: str, _: Random) -> str:
    """Replace the second half of the lines by copies of the first half, at about the same length."""
    lines = code.splitlines()
    half = lines[1 : 1 + len(lines) // 2]
    return "\n".join([lines[0], *half, *half]) + "\n"


LEAKS: Mapping[str, tuple[str, Callable[[Random], list[AuditItem]], Plant]] = {
    "length": ("wrong programs have 3 more lines than otherwise, 12 instead of 9 on average", single, with_code(longer)),
    "comments": ("40 % of wrong programs have an additional comment", single, with_code(commented, share=0.4)),
    "identifiers": ("three of 16 names are longer in wrong programs", single, with_code(renamed)),
    "a word": ("20 % of wrong programs use a name of their own", single,
               with_code(lambda code, _: code.replace("def ", "def fixed_", 1).replace("fixed_", "", 0) + "    legacy = 1\n", share=0.2)),
}  # fmt: skip


def main() -> int:
    args = sample_arguments(__doc__, 200)
    check = SoftAssertions()
    started = process_time()
    for name, simulate in CLEAN.items():
        rng = np.random.default_rng([args.seed, *name.encode()])
        alarms = [bool(audit(simulate(rng)).findings) for _ in range(args.times)]
        check(np.mean(alarms) <= 0.05, f"clean, {name}: false alarms in {np.mean(alarms):.1%} of {args.times}")
    print(process_time() - started)
    return check.exit_code()


def audit(items: list[AuditItem]) -> AuditReport:
    return audit_items(items, AuditSettings())


if __name__ == "__main__":
    sys.exit(main())
