"""The attacks that a sandbox must block: programs that print ESCAPED if they succeed.

Each program starts with the names of `AttackTargets`: a file with a secret, a process with a secret in its environment,
and sockets, all outside the sandbox.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from runner.base.storage.safe_files import create
from runner.curation.sandbox.sandbox import ProgramRun, RunLimits

ATTACK_LIMITS = RunLimits(cpu_seconds=0.5, memory=256 << 20, output=1 << 16, threads=16)

SUCCESS = "ESCAPED"
_VARIABLE = "SANDBOX_CHECK_KEY"

_HELPERS = """
import ctypes, os, socket, struct, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)

def attempt(action):
    try:
        result = action()
    except Exception:
        return
    if result is not False:
        print("ESCAPED", result, flush=True)

def read(path):
    with open(path, "rb") as file:
        return secret.encode() in file.read(1 << 20)

def syscall(number, *arguments):
    return libc.syscall(ctypes.c_long(number), *(ctypes.c_ulong(argument) for argument in arguments)) >= 0

def processes():
    try:
        return [name for name in os.listdir("/proc") if name.isdecimal()]
    except OSError:
        return [os.getppid(), process]

def write(path):
    with open(path, "wb") as file:
        for _ in range(400):
            file.write(bytes(1 << 20))
            file.flush()
    os.unlink(path)
"""


class Attack(NamedTuple):
    """A hostile program. It prints ESCAPED if it succeeds, or never ends, so that a limit has to stop it."""

    name: str
    source: str


ATTACKS = (
    Attack("files", "attempt(lambda: read(secret_file)); attempt(lambda: os.listdir(os.path.dirname(secret_file)))"),
    Attack("environment", "attempt(lambda: secret in repr(os.environ) and 'environ')"),
    Attack(
        "/proc",
        "for name in processes():\n"
        "    for file in ('environ', 'cmdline'):\n"
        "        attempt(lambda: read(f'/proc/{name}/{file}'))\n"
        "    attempt(lambda: open(f'/proc/{name}/mem', 'r+b') and name != str(os.getpid()))",
    ),
    Attack("TCP", "attempt(lambda: socket.create_connection(('127.0.0.1', tcp_port), 1))"),
    Attack("UDP", "attempt(lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', udp_port)))"),
    Attack("abstract socket", "attempt(lambda: socket.socket(socket.AF_UNIX).connect('\\0' + abstract_socket))"),
    Attack(
        "ptrace",
        "for target in (process, os.getppid()):\n"
        "    attempt(lambda: syscall({'x86_64': 101}.get(os.uname().machine, 117), 16, target, 0, 0))\n"
        "    attempt(lambda: syscall({'x86_64': 310}.get(os.uname().machine, 270), target, 0, 0, 0, 0, 0))",
    ),
    Attack("user namespace", "attempt(lambda: libc.unshare(0x10000000) == 0)"),
    Attack("memory", "attempt(lambda: len(bytearray(320 << 20)))"),
    Attack("memory outside the address space", "attempt(lambda: os.ftruncate(os.memfd_create('a'), 1 << 30))"),
    Attack(
        "new process", "attempt(lambda: os.fork() or os._exit(0)); attempt(lambda: os.execv('/bin/true', ['true']))"
    ),
    Attack("fork bomb", "for _ in range(50):\n    attempt(lambda: os.fork() or (time.sleep(1), os._exit(0)))"),
    Attack(
        "threads",
        "threading.stack_size(32768)\n"
        "for _ in range(1000):\n    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "time.sleep(2)\nattempt(threading.active_count)",
    ),
    Attack("CPU", "while True: pass"),
    Attack("sleep", "time.sleep(3600)"),
    Attack("output flood", "while True: print('x' * 10000)"),
    Attack("error flood", "while True: print('x' * 10000, file=sys.stderr)"),
    Attack(
        "big file",
        "for folder in ('/tmp', '/var/tmp', '/dev/shm', '.', os.path.dirname(secret_file)):\n"
        "    attempt(lambda: write(f'{folder}/nip-run-sandbox-check'))",
    ),
    Attack("surviving daemon", "attempt(lambda: os.fork() or (os.setsid(), os.fork(), time.sleep(3), os._exit(0)))"),
    Attack(
        "signals",
        "for target in (process, os.getppid(), -1, 0):\n"
        "    attempt(lambda: os.kill(target, 0))\n"
        "import fcntl\nreader, writer = os.pipe()\nattempt(lambda: fcntl.fcntl(reader, fcntl.F_SETOWN, os.getppid()))",
    ),
    Attack(
        "open files",
        "for number in range(4, 256):\n    attempt(lambda: os.fstat(number))\nattempt(lambda: os.read(3, 1))",
    ),
)


@dataclass(frozen=True)
class AttackTargets:
    """The targets of attacks. The fields become names of the attacking program."""

    secret: str
    secret_file: str
    process: int
    tcp_port: int
    udp_port: int
    abstract_socket: str

    def program(self, attack: Attack) -> ProgramRun:
        """Return the attack as a program."""
        names = "".join(f"{name} = {value!r}\n" for name, value in self.__dict__.items())
        return ProgramRun(attack.source, preamble=names + _HELPERS)


@contextmanager
def open_targets() -> Iterator[AttackTargets]:
    """Create the targets, and add the secret to the environment of this process while they exist."""
    secret = f"canary-{secrets.token_hex(16)}"
    with ExitStack() as stack:
        secret_file = Path(stack.enter_context(tempfile.TemporaryDirectory()), "key")
        with create(secret_file) as file:
            file.write(secret.encode())
        tcp, udp, unix = (
            stack.enter_context(socket.socket(family, kind))
            for family, kind in (
                (socket.AF_INET, socket.SOCK_STREAM), (socket.AF_INET, socket.SOCK_DGRAM),
                (socket.AF_UNIX, socket.SOCK_STREAM),
            )
        )  # fmt: skip
        for listener in (tcp, udp):
            listener.bind(("127.0.0.1", 0))
        unix.bind(f"\0{secret[:20]}")
        tcp.listen()
        unix.listen()
        os.environ[_VARIABLE] = secret
        stack.callback(os.environ.pop, _VARIABLE, None)
        process = stack.enter_context(
            subprocess.Popen([sys.executable, "-IS", "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
        )
        stack.callback(process.kill)
        yield AttackTargets(
            secret, str(secret_file), process.pid, tcp.getsockname()[1], udp.getsockname()[1], secret[:20]
        )
