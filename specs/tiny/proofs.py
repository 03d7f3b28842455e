"""Count the kinds of proofs in games of adp, and how many of each the verifier accepted: python proofs.py RUN..."""

from __future__ import annotations

import argparse
import re
from collections import Counter
from pathlib import Path

import duckdb
from claims import DIGITS, mark_steps

QUERY = """
SELECT r.datapoint_id, r.y = 1, r.decision = 1, m.content
FROM read_parquet($rollouts) r JOIN read_parquet($messages) m USING (rollout_id) WHERE m.agent = 'prover'
"""


def kind_of(digits: str, claimed: str, proof: str) -> str:
    if not re.fullmatch(f"[0-4]{{{DIGITS}}}", proof):
        return "not a proof"
    wrong = mark_steps([*map(int, digits)], [*map(int, proof)]).count("!")
    steps = {0: "no wrong step", 1: "one wrong step"}.get(wrong, "several wrong steps")
    return f"{steps}, ends with {'the claimed' if proof[-1] == claimed else 'another'} sum"


def main() -> None:
    parser = argparse.ArgumentParser(description="Count the kinds of proofs in games of adp.")
    parser.add_argument("runs", nargs="+", metavar="RUN")
    for run in parser.parse_args().runs:
        folder = Path("results/runs", run)
        files = {name: str(folder / f"{name}.parquet") for name in ("rollouts", "messages")}
        games, accepted = Counter[tuple[bool, str]](), Counter[tuple[bool, str]]()
        for datapoint, is_right, is_accepted, proof in duckdb.execute(QUERY, files).fetchall():
            kind = is_right, kind_of(*datapoint.split("-"), proof)
            games[kind] += 1
            accepted[kind] += bool(is_accepted)
        for is_right, kind in sorted(games):
            count = f"{games[is_right, kind]:4} games, {accepted[is_right, kind]:4} accepted"
            print(f"{run}  {'right' if is_right else 'wrong'} claim  {count}  {kind}")


if __name__ == "__main__":
    main()
