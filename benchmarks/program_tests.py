"""Measure how many tests of programs run per minute in the sandbox.

The programs are the solutions of the shipped problems with their tests; each test is a process of its own.
`python benchmarks/program_tests.py [--minimum 500]` fails if there are fewer per minute.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import Counter

from runner.base.package_data import root
from runner.curation.benchmark_formats import parse_assertions
from runner.curation.program_tester import ProgramTester
from runner.curation.program_tests import Program, is_correct
from runner.curation.sandbox.mechanisms import UnavailableMechanism, list_mechanisms


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minimum", type=int, default=500)
    minimum = parser.parse_args().minimum
    data = root() / "specs" / "data"
    rows = [json.loads(line) for line in (data / "code_validation.jsonl").read_text("utf-8").splitlines()]
    lines = (data / "code_validation.tests.jsonl").read_text("utf-8").splitlines()
    tests = {row["problem"]: parse_assertions(row["tests"]) for row in map(json.loads, lines)}
    programs = [(Program(row["solution"]), tests[row["problem"]]) for row in rows]
    rates = []
    for mechanism in list_mechanisms():
        if isinstance(mechanism, UnavailableMechanism):
            continue
        started = time.perf_counter()
        with ProgramTester(mechanism) as tester:
            results = list(tester.test(programs))
        seconds = time.perf_counter() - started
        cpu_seconds = sum(result.cpu_seconds for program_results in results for result in program_results)
        is_confirmed = [is_correct(result) == (row["label"] == 1) for result, row in zip(results, rows, strict=True)]
        count = sum(map(len, results))
        rates.append(count / seconds * 60)
        verdicts = Counter(result.verdict.value for program_results in results for result in program_results)
        print(
            f"{mechanism.name}: {count} tests in {seconds:.1f} s, {rates[-1]:,.0f} per minute, "
            f"{1000 * cpu_seconds / count:.1f} ms of CPU each, load {os.getloadavg()[0]:.0f}; {dict(verdicts)}; "
            f"{sum(is_confirmed)} of {len(is_confirmed)} labels confirmed"
        )
    if not rates or min(rates) < minimum:
        raise SystemExit(f"fewer than {minimum} tests per minute")


if __name__ == "__main__":
    main()
