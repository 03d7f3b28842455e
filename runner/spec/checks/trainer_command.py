"""Check the command of a trainer: its arguments and placeholders. The trainer `command` fills in the placeholders."""

from __future__ import annotations

import re
from collections.abc import Sequence

from runner.base.text import comma_join, did_you_mean

PLACEHOLDERS = ("dataset", "base_model", "output", "model_file", "method", "seed", "group")


PLACEHOLDER = re.compile(r"\{(\w+)\}")


def command_problems(command: Sequence[str]) -> list[str]:
    """Return everything that is wrong with a trainer's argument list."""
    used = [name for argument in command for name in PLACEHOLDER.findall(argument)]
    available = comma_join(f"{{{name}}}" for name in PLACEHOLDERS)
    problems = [
        f"unknown placeholder {{{name}}}{did_you_mean(name, PLACEHOLDERS)} (available: {available})"
        for name in dict.fromkeys(used)
        if name not in PLACEHOLDERS
    ]
    if not command or not command[0].strip():
        problems.append("the program is missing; write it as the first argument")
    if any("\0" in argument for argument in command):
        problems.append(
            "an argument contains a NUL character, which cannot be passed to a program; remove the character"
        )
    if "dataset" not in used:
        problems.append(
            "{dataset} is missing: the trainer would not get the training file; add {dataset} as an argument"
        )
    if "model_file" not in used and "output" not in used:
        problems.append(
            "{model_file} or {output} is missing: the trainer could not report the new model; add one of them as an "
            "argument"
        )
    return problems
