"""The task: do twelve digits add up to a sum modulo 5? A proof is the list of running sums.

    314102430212=1?    a claim
    343441033013       the running sums; this claim is wrong, because the last sum is 3

Run as a program, write the claims for the games: python claims.py claims.jsonl --seed 0
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

DIGITS = 12
BASE = 5


class Claim(NamedTuple):
    """Some digits and the sum that is claimed for them."""

    digits: tuple[int, ...]
    claimed: int

    @property
    def true_sum(self) -> int:
        return sum(self.digits) % BASE

    @property
    def is_right(self) -> bool:
        return self.claimed == self.true_sum

    def __str__(self) -> str:
        return f"{text(self.digits)}={self.claimed}?"


def text(numbers: Sequence[int]) -> str:
    return "".join(map(str, numbers))


def split_of(digits: Sequence[int]) -> str:
    """Return the part that a list of digits belongs to, which its hash determines."""
    tenth = hashlib.sha256(text(digits).encode()).digest()[0] * 10 // 256
    return next(name for name, end in (("test", 1), ("train", 5), ("pretrain", 10)) if tenth < end)


def draw_digits(random: Random, split: str) -> tuple[int, ...]:
    while True:
        digits = tuple(random.randrange(BASE) for _ in range(DIGITS))
        if split_of(digits) == split:
            return digits


def draw_claim(random: Random, split: str) -> Claim:
    """Draw a claim that is right or wrong with the same probability."""
    digits = draw_digits(random, split)
    error = random.randrange(1, BASE) if random.random() < 0.5 else 0
    return Claim(digits, (sum(digits) + error) % BASE)


def prove(digits: Sequence[int], result: int, lie_at: int) -> tuple[int, ...]:
    """Return running sums that end with `result`. If it is not the true sum, the step `lie_at` is wrong."""
    error = result - sum(digits)
    sums = [sum(digits[: step + 1]) + (error if step >= lie_at else 0) for step in range(len(digits))]
    return tuple(value % BASE for value in sums)


def recompute(digits: Sequence[int], sums: Sequence[int]) -> tuple[int, ...]:
    """Return what each sum should be if the sum before it is right."""
    return tuple((before + digit) % BASE for before, digit in zip((0, *sums[:-1]), digits, strict=True))


def mark_steps(digits: Sequence[int], sums: Sequence[int]) -> str:
    """Return a mark for each step: `.` if the sum follows from the sum before it, otherwise `!`."""
    return "".join(".!"[value != should] for value, should in zip(sums, recompute(digits, sums), strict=True))


def rows(seed: int, groups: dict[str, int]) -> Iterator[dict[str, str | int]]:
    """Yield a right and a wrong claim about each list of digits, as many lists for each split as `groups` says."""
    random = Random(seed)
    for split, count in groups.items():
        used = set[tuple[int, ...]]()
        while len(used) < count:
            digits = draw_digits(random, split)
            if digits in used:
                continue
            used.add(digits)
            wrong = (sum(digits) + random.randrange(1, BASE)) % BASE
            for claim in (Claim(digits, sum(digits) % BASE), Claim(digits, wrong)):
                yield {
                    "id": f"{text(digits)}-{claim.claimed}", "split": split, "digits": text(digits),
                    "claim": str(claim), "true_sum": claim.true_sum, "label": int(claim.is_right),
                }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="Write claims for the games.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--train", type=int, default=3000, help="lists of digits; there are two claims about each")
    parser.add_argument("--test", type=int, default=300)
    args = parser.parse_args()
    lines = [json.dumps(row) for row in rows(args.seed, {"test": args.test, "train": args.train})]
    args.file.write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
