"""Confine the current process through ctypes: no capabilities, Landlock, limits on resources, a filter of syscalls.

This module runs inside the sandbox, where only the standard library exists.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import struct
from collections.abc import Mapping, Sequence
from typing import Any

_LIBC = ctypes.CDLL(None, use_errno=True)

# prctl
_SET_DEATH_SIGNAL, _SET_DUMPABLE, _SET_SECCOMP, _SET_NO_NEW_PRIVS, _FILTER_MODE = 1, 4, 22, 38, 2

# The instructions of a filter, and its results.
_LOAD, _AND, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x54, 0x15, 0x06
_ALLOW, _KILL, _FAIL = 0x7FFF0000, 0x80000000, 0x00050000
_EPERM, _ENOSYS = 1, 38
_OWN_PROCESS = -1

# Landlock: its system calls have the same numbers on all machines.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 14
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}
"""Number of rights on files, by version of Landlock; 16 in newer versions."""
_TCP_VERSION, _SCOPE_VERSION = 4, 6

MAX_OPEN_FILES = 64
_STACK_BYTES = 64 << 20


def _check(result: int, call: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
    return result


def _syscall(number: int, *arguments: object) -> int:
    return int(_LIBC.syscall(ctypes.c_long(number), *arguments))


def _prctl(option: int, *arguments: object) -> None:
    values = [ctypes.c_ulong(argument) if isinstance(argument, int) else argument for argument in arguments]
    _check(_LIBC.prctl(option, *values), "prctl")


def hide_process() -> None:
    """Prevent other processes of the user from reading this process's memory, environment and open files."""
    _prctl(_SET_DUMPABLE, 0, 0, 0, 0)


def landlock_version() -> int:
    """Return the version of Landlock in this kernel; 0 if it has none or does not allow it."""
    return max(_syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(1)), 0)


def create_landlock_ruleset(readable: Sequence[str], writable: Sequence[str]) -> int | None:
    """Return a descriptor of rules that allow these paths, and no TCP. None if the kernel has no Landlock."""
    version = landlock_version()
    if not version:
        return None
    rights = (1 << _FILE_RIGHTS.get(version, 16)) - 1
    fields = [rights] + [3] * (version >= _TCP_VERSION) + [3] * (version >= _SCOPE_VERSION)
    attributes = struct.pack(f"<{len(fields)}Q", *fields)
    size = ctypes.c_size_t(len(attributes))
    ruleset = _check(_syscall(_CREATE_RULESET, attributes, size, ctypes.c_uint(0)), "landlock_create_ruleset")
    for path in readable:
        _allow_path(ruleset, path, (_EXECUTE | _READ_FILE | _READ_DIR) & rights)
    for path in writable:
        _allow_path(ruleset, path, (_READ_FILE | _WRITE_FILE | _TRUNCATE) & rights)
    return ruleset


def _allow_path(ruleset: int, path: str, rights: int) -> None:
    """Allow the rights below a path; a path that does not exist is skipped."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not os.path.isdir(path):  # noqa: PTH112 - the sandbox does not load pathlib
            rights &= ~_READ_DIR
        rule = struct.pack("<Qi", rights, descriptor)
        _check(_syscall(_ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(1), rule, ctypes.c_uint(0)), "landlock_add_rule")
    finally:
        os.close(descriptor)


def drop_privileges(ruleset: int | None) -> None:
    """Give up all capabilities, and all files that the Landlock rules do not allow. It cannot be undone."""
    _prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    header, nothing = struct.pack("<Ii", 0x20080522, 0), bytes(24)
    _check(_LIBC.capset(header, nothing), "capset")
    if ruleset is not None:
        _check(_syscall(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint(0)), "landlock_restrict_self")
    _prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)  # end with the server


def limit_resources(cpu_seconds: float, memory: int) -> None:
    """Limit CPU time and memory (bytes of address space), and forbid to write into files and to lock memory."""
    seconds = int(cpu_seconds) + 2  # the server measures CPU time more precisely; this is for the case that it ends
    limits = {
        resource.RLIMIT_AS: memory, resource.RLIMIT_CPU: seconds, resource.RLIMIT_FSIZE: 0, resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: MAX_OPEN_FILES, resource.RLIMIT_MEMLOCK: 0, resource.RLIMIT_MSGQUEUE: 0,
    }  # fmt: skip
    stack = resource.getrlimit(resource.RLIMIT_STACK)[1]
    resource.setrlimit(resource.RLIMIT_STACK, (_STACK_BYTES if stack < 0 else min(stack, _STACK_BYTES), stack))
    for kind, limit in limits.items():
        hard = resource.getrlimit(kind)[1]
        value = limit if hard < 0 else min(limit, hard)
        resource.setrlimit(kind, (value, value))


def filter_program(rules: Mapping[str, Any], own_process: int) -> bytes:
    """Return the instructions of the filter that `syscalls.describe_filter` describes."""

    def instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
        return struct.pack("<HBBI", code, if_true, if_false, value & 0xFFFFFFFF)

    def allow_if_equal(value: int) -> list[bytes]:
        return [instruction(_JUMP_IF_EQUAL, value, 0, 1), instruction(_RETURN, _ALLOW)]

    program = [
        instruction(_LOAD, 4),
        instruction(_JUMP_IF_EQUAL, rules["architecture"], 1, 0),
        instruction(_RETURN, _KILL),
        instruction(_LOAD, 0),
    ]
    for number in rules["allowed"]:
        program += allow_if_equal(number)
    for number, argument, mask, values in rules["checked"]:
        check = [instruction(_LOAD, 16 + 8 * argument), instruction(_AND, mask)]
        for value in values:
            check += allow_if_equal(own_process if value == _OWN_PROCESS else value)
        check.append(instruction(_RETURN, _FAIL | _EPERM))
        program += [instruction(_JUMP_IF_EQUAL, number, 0, len(check)), *check]
    for number in rules["missing"]:
        program += [instruction(_JUMP_IF_EQUAL, number, 0, 1), instruction(_RETURN, _FAIL | _ENOSYS)]
    program.append(instruction(_RETURN, _FAIL | _EPERM))
    return b"".join(program)


def install_filter(program: bytes) -> None:
    """Apply a filter of system calls to this process. It cannot be removed."""
    buffer = ctypes.create_string_buffer(program, len(program))
    pointer = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer))
    _prctl(_SET_SECCOMP, _FILTER_MODE, pointer)
