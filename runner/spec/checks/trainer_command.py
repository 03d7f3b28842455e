"""The command of a trainer: its words and placeholders."""

from __future__ import annotations

import re
from collections.abc import Sequence

from runner.base.text import comma_join, did_you_mean

PLACEHOLDERS = ("dataset", "base_model", "output", "model_file", "method", "seed", "group")


_PLACEHOLDER = re.compile(r"\{(\w+)\}")


def command_problems(command: Sequence[str]) -> list[str]:
    """Everything that is wrong with a trainer's argument list, before anything is started."""
    used = [name for argument in command for name in _PLACEHOLDER.findall(argument)]
    known = comma_join(f"{{{name}}}" for name in PLACEHOLDERS)
    problems = [
        f"no placeholder {{{name}}}{did_you_mean(name, PLACEHOLDERS)} (there are {known})"
        for name in dict.fromkeys(used)
        if name not in PLACEHOLDERS
    ]
    if not command or not command[0].strip():
        problems.append("the first argument is the program, and there is none")
    if any("\0" in argument for argument in command):
        problems.append("an argument has a NUL character, which no program can be given")
    if "dataset" not in used:
        problems.append("{dataset} is missing: the trainer is not told what to train on")
    if "model_file" not in used and "output" not in used:
        problems.append("{model_file} or {output} is missing: the trainer cannot say what the new model is")
    return problems
