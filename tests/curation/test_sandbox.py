"""The sandbox is used only if it blocks all attacks; tests of its parts."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from unittest.mock import patch

import pytest

from runner.curation.sandbox import probe
from runner.curation.sandbox.attacks import ATTACKS, SUCCESS, Attack, AttackTargets, open_targets
from runner.curation.sandbox.confinement import filter_program
from runner.curation.sandbox.mechanisms import LANDLOCK, Mechanism, UnavailableMechanism, list_mechanisms
from runner.curation.sandbox.probe import check_mechanisms, choose_mechanism
from runner.curation.sandbox.sandbox import ProgramRun, RunLimits, Sandbox, SandboxError
from runner.curation.sandbox.syscalls import ARCHITECTURES, CHECKED, allowed_numbers, describe_filter
from tests.support.hang_guard import HANG_SECONDS
from tests.support.processes import nip_run_here, wait_until


def patch_mechanisms(mechanism: Mechanism | UnavailableMechanism) -> AbstractContextManager[object]:
    return patch.object(probe, "list_mechanisms", lambda *_: iter([mechanism]))


def test_missing_sandbox_is_an_error_that_states_what_is_missing() -> None:
    with (
        patch_mechanisms(UnavailableMechanism("bubblewrap", "`bwrap` is not installed")),
        pytest.raises(SandboxError) as error,
    ):
        choose_mechanism()
    assert "no program is run: bubblewrap cannot be used: `bwrap` is not installed; " not in str(error.value)
    assert "no program is run: bubblewrap cannot be used: `bwrap` is not installed. Allow" in str(error.value)


def test_a_sandbox_that_does_not_block_an_attack_is_not_used(mechanism: Mechanism, tmp_path: Path) -> None:
    attacks = (Attack("sum", "attempt(lambda: 1 + 1)"), Attack("nothing", "attempt(lambda: 1 / 0)"))
    with patch_mechanisms(mechanism), patch.object(probe, "ATTACKS", attacks):
        (check,) = check_mechanisms()
        assert check.escapes == ("sum",)
        with pytest.raises(SandboxError, match="does not block 1 of 2 attacks: sum"):
            choose_mechanism()
        done = nip_run_here("sandbox", "check", cwd=tmp_path)
        assert (done.returncode, "No sandbox blocks" in done.stdout) == (1, True)
    with patch_mechanisms(mechanism), patch.object(probe, "ATTACKS", attacks[1:]):
        assert choose_mechanism() is mechanism
        done = nip_run_here("sandbox", "check", "--json", cwd=tmp_path)
        assert (done.returncode, f'"used": "{mechanism.name}"' in done.stdout) == (0, True)


def test_a_command_that_does_not_start_is_reported_with_its_error() -> None:
    configured = next(list_mechanisms(["sh", "-c", "echo no such image >&2; exit 3"]))
    assert isinstance(configured, Mechanism)
    with Sandbox(configured) as sandbox, pytest.raises(SandboxError, match="no such image"):
        sandbox.start()
    missing = next(list_mechanisms(["no-such-program"]))
    assert isinstance(missing, Mechanism)
    with Sandbox(missing) as sandbox, pytest.raises(SandboxError, match="cannot start no-such-program"):
        sandbox.start()


def test_a_machine_without_linux_has_no_sandbox() -> None:
    with patch.object(platform, "machine", return_value="riscv64"):
        (mechanism,) = list_mechanisms()
    assert isinstance(mechanism, UnavailableMechanism)
    assert "x86_64 or aarch64" in mechanism.reason


def test_a_sandbox_that_was_killed_starts_again(mechanism: Mechanism) -> None:
    run = ProgramRun("print(1)")
    with Sandbox(mechanism) as sandbox:
        sandbox.start()
        process = sandbox._process
        assert process is not None
        process.kill()
        process.wait()
        with pytest.raises(SandboxError):
            for _ in range(1_000):  # the process inside ends a moment after bubblewrap
                sandbox.run(run, RunLimits())
        assert sandbox.run(run, RunLimits()).stdout == "1\n"


@pytest.mark.gate
def test_sandbox_ends_with_the_process_that_uses_it() -> None:
    code = (
        "import os, sys, threading\nfrom runner.curation.sandbox.mechanisms import list_mechanisms\n"
        "from runner.curation.sandbox.sandbox import *\n"
        "mechanism = [*list_mechanisms()][-1]\nsandbox = Sandbox(mechanism)\nsandbox.start()\n"
        "print(sandbox._process.pid, flush=True)\nthreading.Timer(0.2, os.kill, (os.getpid(), 9)).start()\n"
        "sandbox.run(ProgramRun('while True: pass'), RunLimits(cpu_seconds=3600))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG_SECONDS, check=False
    )
    if "SandboxError" in done.stderr:
        pytest.skip("this machine has no Landlock")
    assert done.returncode == -9
    wait_until(lambda: not Path(f"/proc/{done.stdout.strip()}").exists())


# Landlock, the system call filter, and its tables


HEADERS = {"x86_64": "/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "aarch64": "/usr/include/asm-generic/unistd.h"}


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_system_call_numbers_equal_those_of_the_kernel_headers(machine: str) -> None:
    if not Path(HEADERS[machine]).exists():
        pytest.skip("needs the package linux-libc-dev")
    text = Path(HEADERS[machine]).read_text("utf-8")
    # The generic header has __NR3264_fstat for fstat.
    kernel = {
        {"fstatat": "newfstatat"}.get(name, name): int(number)
        for name, number in re.findall(r"#define __NR(?:3264)?_(\w+) (\d+)", text)
    }
    column = ARCHITECTURES[machine].column
    numbers = {**allowed_numbers(machine), **{name: call.numbers[column] for name, call in CHECKED.items()}}
    assert {name: kernel.get(name) for name in numbers} == numbers
    assert len(set(numbers.values())) == len(numbers)
    assert not {"fork", "vfork", "execve", "socket", "ptrace", "unshare", "memfd_create"} & set(numbers)


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_filter_has_complete_instructions_within_the_kernel_limit(machine: str) -> None:
    program = filter_program(describe_filter(machine), 1234)
    assert len(program) % 8 == 0
    assert len(program) // 8 < 4096
    assert program[-8:-4] == b"\x06\0\0\0"
    assert (1234).to_bytes(4, "little") in program


@pytest.fixture
def targets() -> Iterator[AttackTargets]:
    with open_targets() as targets:
        yield targets


ENDLESS_ATTACKS = {"CPU", "sleep", "output flood", "error flood"}
MACHINE_DEPENDENT = {"ptrace", "user namespace", "/proc", "big file", "open files", "fork bomb"}
"""Attacks that need rights that some machines do not grant, fill the disk, or use the sandbox's descriptors."""


@pytest.mark.full
@pytest.mark.parametrize(
    "attack", [a for a in ATTACKS if a.name not in ENDLESS_ATTACKS | MACHINE_DEPENDENT], ids=lambda a: a.name
)
def test_an_attack_succeeds_without_a_sandbox(attack: Attack, targets: AttackTargets) -> None:
    run = targets.program(attack)
    done = subprocess.run(
        [sys.executable, "-IS", "-c", f"{run.preamble}\n{run.source}"], capture_output=True, text=True,
        timeout=HANG_SECONDS, check=False, env=os.environ,
    )  # fmt: skip
    assert SUCCESS in done.stdout, done.stderr


@pytest.mark.full
def test_every_mechanism_that_starts_blocks_all_attacks() -> None:
    checks = [check for check in check_mechanisms() if check.problem is None]
    assert checks
    assert {check.name: check.escapes for check in checks} == {check.name: () for check in checks}
    assert all(check.has_landlock for check in checks if check.name == LANDLOCK)
