"""Run all hostile programs in the sandbox that this process chooses, and print the escapes as JSON.

    python hostile_driver.py ENVIRONMENT USER HOME

This is a process of its own, since it makes itself a less capable one: ENVIRONMENT names what the kernel refuses, and
USER is the id of the user that it becomes. OPENAI_API_KEY has the key that programs must not print.
"""

from __future__ import annotations

import json
import os
import platform
import struct
import sys
from collections.abc import Collection, Mapping

from runner.curation.sandbox import confinement
from runner.curation.sandbox.attacks import ATTACK_LIMITS, SUCCESS, Attack, AttackTargets, open_targets
from runner.curation.sandbox.probe import choose_mechanism
from runner.curation.sandbox.sandbox import ProgramRun, Sandbox, SandboxError
from runner.curation.sandbox.syscalls import ARCHITECTURES
from tests.support.hostile_programs import HOSTILE_PROGRAMS

EPERM, ENOSYS = 1, 38
CLONE = (56, 220)
ALL_NAMESPACES = 0x7E020000
NAMESPACES = {(272, 97): EPERM, (308, 268): EPERM, (435, 435): ENOSYS}
"""unshare, setns and clone3, by their numbers on x86-64 and ARM."""
CONTAINER = {
    # mount, umount2, pivot_root, chroot, keyctl, add_key, request_key, bpf, perf_event_open, ptrace, kcmp, ...
    **dict.fromkeys(
        [(165, 40), (166, 39), (155, 41), (250, 219), (248, 217), (249, 218), (321, 280), (298, 241), (101, 117),
         (312, 272), (323, 282), (425, 425), (426, 426), (427, 427), (304, 265), (175, 105), (246, 104), (169, 142),
         (167, 224), (170, 161), (310, 270), (311, 271), (103, 116), (139, -1)], EPERM,
    ),
    **NAMESPACES,
}  # fmt: skip
WITHOUT_LANDLOCK = dict.fromkeys([(444, 444), (445, 445), (446, 446)], ENOSYS)

ENVIRONMENTS: Mapping[str, Mapping[tuple[int, int], int]] = {
    "unprivileged": {},
    "no user namespaces": NAMESPACES,
    "container": CONTAINER,
    "no Landlock": WITHOUT_LANDLOCK,
    "nothing": {**NAMESPACES, **WITHOUT_LANDLOCK},
}
"""The system calls that each environment refuses, with the error."""


def refuse(calls: Mapping[tuple[int, int], int]) -> None:
    """Let the kernel refuse system calls of this process and its children; with `NAMESPACES`, also clones into them."""
    architecture = ARCHITECTURES[platform.machine()]

    def instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
        return struct.pack("<HBBI", code, if_true, if_false, value & 0xFFFFFFFF)

    program = [instruction(0x20, 0)]
    for numbers, error in calls.items():
        program += [instruction(0x15, numbers[architecture.column], 0, 1), instruction(0x06, 0x50000 | error)]
    if NAMESPACES.keys() <= calls.keys():
        program += [instruction(0x15, CLONE[architecture.column], 0, 3), instruction(0x20, 16)]
        program += [instruction(0x45, ALL_NAMESPACES, 0, 1), instruction(0x06, 0x50000 | EPERM)]
    program.append(instruction(0x06, 0x7FFF0000))
    confinement._prctl(confinement._SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    confinement.install_filter(b"".join(program))


def find_escapes(sandbox: Sandbox, targets: AttackTargets, home: str, names: Collection[str]) -> list[str]:
    """Return the names of the programs that escape."""
    key, escapes = os.environ["OPENAI_API_KEY"], []
    for name in names:
        attack = Attack(name, f"home = {home!r}\n{HOSTILE_PROGRAMS[name]}")
        try:
            outcome = sandbox.run(targets.program(attack), ATTACK_LIMITS)
            printed = f"{outcome.stdout}{outcome.stderr}{outcome.value}"
            following = sandbox.run(ProgramRun("print(int(input()) + 1)", stdin="41"), ATTACK_LIMITS).stdout
        except SandboxError as error:
            escapes.append(f"{name}: {error}")
            continue
        if SUCCESS in printed or key in printed or following != "42\n":
            escapes.append(f"{name}: {printed[-500:]}, then {following!r}")
    return escapes


def main(environment: str, user: int, home: str) -> None:
    if os.getuid() != user:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    if ENVIRONMENTS[environment]:
        refuse(ENVIRONMENTS[environment])
    try:
        mechanism = choose_mechanism()
    except SandboxError as error:
        print(json.dumps({"refusal": str(error)}))
        return
    with open_targets() as targets, Sandbox(mechanism) as sandbox:
        escapes = find_escapes(sandbox, targets, home, tuple(HOSTILE_PROGRAMS))
        alive = os.path.exists(f"/proc/{targets.process}")  # noqa: PTH110
    print(json.dumps({"mechanism": mechanism.name, "escapes": escapes, "target is alive": alive}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
