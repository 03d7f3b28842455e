"""The system calls that a program in the sandbox may use, on x86-64 and on 64-bit ARM.

All others fail. So a program can read files, use memory, start threads and print, but it cannot create processes,
sockets, shared memory or namespaces, replace its program, send signals to others, or change files' metadata.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import NamedTuple

_ALLOWED = """
read 0 63; write 1 64; readv 19 65; writev 20 66; pread64 17 67; pwrite64 18 68; close 3 57;
close_range 436 436; lseek 8 62; fstat 5 80; stat 4 -; lstat 6 -; newfstatat 262 79; statx 332 291; open 2 -;
openat 257 56; access 21 -; faccessat 269 48; faccessat2 439 439; readlink 89 -; readlinkat 267 78;
getdents64 217 61; getcwd 79 17; fstatfs 138 44; statfs 137 43; dup 32 23; dup2 33 -; dup3 292 24; pipe 22 -;
pipe2 293 59; poll 7 -; ppoll 271 73; select 23 -; pselect6 270 72; epoll_create1 291 20; epoll_ctl 233 21;
epoll_wait 232 -; epoll_pwait 281 22; eventfd2 290 19; mmap 9 222; munmap 11 215; mprotect 10 226;
mremap 25 216; madvise 28 233; brk 12 214; rt_sigaction 13 134; rt_sigprocmask 14 135; rt_sigreturn 15 139;
rt_sigtimedwait 128 137; sigaltstack 131 132; restart_syscall 219 128; alarm 37 -; setitimer 38 103;
getitimer 36 102; futex 202 98; set_robust_list 273 99; rseq 334 293; sched_yield 24 124;
sched_getaffinity 204 123; getcpu 309 168; exit 60 93; exit_group 231 94; getpid 39 172; gettid 186 178;
getppid 110 173; getuid 102 174; geteuid 107 175; getgid 104 176; getegid 108 177; getgroups 115 158;
getresuid 118 148; getresgid 120 150; getpgrp 111 -; getpgid 121 155; getsid 124 156; getrandom 318 278;
clock_gettime 228 113; clock_getres 229 114; clock_nanosleep 230 115; nanosleep 35 101; gettimeofday 96 169;
time 201 -; times 100 153; getrusage 98 165; getrlimit 97 163; uname 63 160; umask 95 166
"""
"""Names with the numbers on x86-64 and on ARM; a dash if the machine does not have the call."""

OWN_PROCESS = -1
"""Stands for the id of the confined process in `CheckedSyscall.values`."""

_THREAD_FLAG = 0x10000  # CLONE_THREAD: a new thread, not a process
_ALL_BITS = 0xFFFFFFFF


class CheckedSyscall(NamedTuple):
    """A system call that is allowed if one of its arguments, masked, has one of these values."""

    numbers: tuple[int, int]
    argument: int
    mask: int
    values: tuple[int, ...]


CHECKED: Mapping[str, CheckedSyscall] = {
    "clone": CheckedSyscall((56, 220), 0, _THREAD_FLAG, (_THREAD_FLAG,)),
    "kill": CheckedSyscall((62, 129), 0, _ALL_BITS, (OWN_PROCESS,)),
    "tgkill": CheckedSyscall((234, 131), 0, _ALL_BITS, (OWN_PROCESS,)),
    "prlimit64": CheckedSyscall((302, 261), 0, _ALL_BITS, (0, OWN_PROCESS)),
    # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC. With F_SETOWN, a program could send signals.
    "fcntl": CheckedSyscall((72, 25), 1, _ALL_BITS, (0, 1, 2, 3, 4, 1030)),
    # TCGETS, FIONREAD, FIONCLEX, FIOCLEX. With TIOCSTI, a program could type into a terminal.
    "ioctl": CheckedSyscall((16, 29), 1, _ALL_BITS, (0x5401, 0x541B, 0x5450, 0x5451)),
}
_CLONE3 = 435
"""A call whose flags a filter cannot read. The filter says that it does not exist, and libc uses `clone` instead."""


class Architecture(NamedTuple):
    """A machine type: its number in the kernel's audit interface, and its column in the tables above."""

    audit_number: int
    column: int


ARCHITECTURES: Mapping[str, Architecture] = {
    "x86_64": Architecture(0xC000003E, 0),
    "aarch64": Architecture(0xC00000B7, 1),
}


def allowed_numbers(machine: str) -> Mapping[str, int]:
    """Return the numbers of the calls that are always allowed, by name."""
    column = ARCHITECTURES[machine].column + 1
    entries = (entry.split() for entry in _ALLOWED.split(";"))
    return {entry[0]: int(entry[column]) for entry in entries if entry[column] != "-"}


def describe_filter(machine: str | None = None) -> Mapping[str, object]:
    """Return the rules of the filter as JSON, for `confinement.filter_program`."""
    machine = machine or platform.machine()
    column = ARCHITECTURES[machine].column
    return {
        "architecture": ARCHITECTURES[machine].audit_number,
        "allowed": sorted(allowed_numbers(machine).values()),
        "checked": [(call.numbers[column], *call[1:]) for call in CHECKED.values()],
        "missing": [_CLONE3],
    }
