"""`nip-run run`: a run that several processes seem to play has them begun while its spec is loaded.

It is a guess by the text of spec and command: what it is for is known later. Where it is wrong, processes are begun for
nothing, or begun later. So a run by one process imports nothing for it, and reads its spec's first bytes once more.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

_SAID = re.compile(rb"^[^#\n]*\bprocesses[\"']?\s*[:=]\s*([0-9]{1,3})\b", re.MULTILINE)
"""`execution.processes=2`, `processes: 2`, and `{"processes": 2}`."""

_READ = 1 << 16
"""Bytes of a spec that are looked through."""


def execute(args: argparse.Namespace) -> int:
    with ExitStack() as closing:
        count = 0 if args.replay else guessed(args.words)
        if count > 1:
            from runner.runs.workers.prestarted import begun_ahead  # most runs need none

            closing.enter_context(begun_ahead(count))
        code: int = importlib.import_module("runner.cli.experiments.run").execute(args)
        return code


def guessed(words: Sequence[str]) -> int:
    """How many processes are to play, as it seems: the last word that says it holds; 0 where none does."""
    said = [found for text in _texts(words) for found in _SAID.findall(text)]
    return int(said[-1]) if said else 0


def _texts(words: Sequence[str]) -> Iterator[bytes]:
    """The beginnings of the files among the words, then the words that are none."""
    others = []
    for word in words:
        try:
            file = os.open(word, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, ValueError):
            others.append(word.encode("utf-8", "replace"))
            continue
        try:
            if stat.S_ISREG(os.fstat(file).st_mode):
                yield os.read(file, _READ)
        except OSError:
            pass  # whoever loads it says so
        finally:
            os.close(file)
    yield from others
