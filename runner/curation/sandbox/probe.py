"""Check which mechanisms of this machine block all attacks, and choose the strongest of these."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from runner.curation.sandbox.attacks import ATTACK_LIMITS, ATTACKS, SUCCESS, AttackTargets, open_targets
from runner.curation.sandbox.mechanisms import Mechanism, UnavailableMechanism, list_mechanisms
from runner.curation.sandbox.sandbox import ProgramRun, Sandbox, SandboxError


class MechanismCheck(NamedTuple):
    """The result of all attacks on a mechanism. `problem` says why it cannot be used at all."""

    name: str
    mechanism: Mechanism | None
    has_landlock: bool
    escapes: tuple[str, ...]
    problem: str | None

    @property
    def blocks_all(self) -> bool:
        return self.problem is None and not self.escapes

    def describe(self) -> str:
        """Return the result in a few words."""
        if self.problem is not None:
            return f"cannot be used: {self.problem}"
        if self.escapes:
            return f"does not block {len(self.escapes)} of {len(ATTACKS)} attacks: {', '.join(self.escapes)}"
        return f"blocks all {len(ATTACKS)} attacks"


def check_mechanisms(command: Sequence[str] = ()) -> Iterator[MechanismCheck]:
    """Yield the check of each mechanism of `list_mechanisms`, the strongest first."""
    with open_targets() as targets:
        for mechanism in list_mechanisms(command):
            if isinstance(mechanism, UnavailableMechanism):
                yield MechanismCheck(mechanism.name, None, has_landlock=False, escapes=(), problem=mechanism.reason)
            else:
                yield _check_mechanism(mechanism, targets)


def choose_mechanism(command: Sequence[str] = ()) -> Mechanism:
    """Return the strongest mechanism that blocks all attacks: the configured command, or one of this machine.

    Raises:
        SandboxError: no mechanism blocks all attacks; the message says what is missing.
    """
    reasons = []
    for check in check_mechanisms(command):
        if check.blocks_all and check.mechanism is not None:
            return check.mechanism
        reasons.append(f"{check.name} {check.describe()}")
    raise SandboxError(
        "no sandbox of this machine blocks all attacks, so no program is run: "
        + "; ".join(reasons)
        + ". Allow unprivileged user "
        "namespaces and install bubblewrap, use Linux 5.13 or newer with Landlock, or configure a command such as "
        "'podman run -i --rm --network=none IMAGE'"
    )


def _check_mechanism(mechanism: Mechanism, targets: AttackTargets) -> MechanismCheck:
    escapes = []
    with Sandbox(mechanism) as sandbox:
        try:
            outcome = sandbox.run(ProgramRun("print('works')"), ATTACK_LIMITS)
            problem = None if outcome.stdout == "works\n" else f"a harmless program fails: {outcome.stderr.strip()}"
        except SandboxError as error:
            problem = str(error)
        has_landlock = sandbox.has_landlock
        if problem is not None:
            return MechanismCheck(mechanism.name, mechanism, has_landlock, (), problem)
        for attack in ATTACKS:
            try:
                outcome = sandbox.run(targets.program(attack), ATTACK_LIMITS)
                escaped = SUCCESS in outcome.stdout or targets.secret in outcome.stderr
            except SandboxError:
                escaped = True  # the attack ended the sandbox, or no limit stopped it
            if escaped:
                escapes.append(attack.name)
    return MechanismCheck(mechanism.name, mechanism, has_landlock, tuple(escapes), None)
