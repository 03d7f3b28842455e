"""Programs that try to get out of a sandbox. They start with the names and helpers of the attacks of `sandbox check`.

A program escapes if it prints ESCAPED, if it prints the API key of the process that started the sandbox, if it ends the
sandbox, or if it changes what the next program prints.
"""

from __future__ import annotations

import re
from pathlib import Path

_NUMBERS = """
NUMBERS = dict(zip(
    'ptrace process_vm_readv process_vm_writev kcmp perf_event_open bpf keyctl request_key userfaultfd memfd_create '
    'io_uring_setup pidfd_open pidfd_getfd pidfd_send_signal shmget semget mq_open unshare setns mount chroot setuid '
    'personality inotify_init1 fanotify_init open_by_handle_at syslog reboot sethostname settimeofday '
    'sched_setaffinity ioprio_set socket socketpair sendto execveat vfork clone3 '
    'rt_sigqueueinfo tkill timer_create seccomp'.split(),
    zip(
        (101, 310, 311, 312, 298, 321, 250, 249, 323, 319, 425, 434, 438, 424, 29, 64, 240, 272, 308, 165, 161, 105,
         135, 294, 300, 304, 103, 169, 170, 164, 203, 251, 41, 53, 44, 322, 58, 435, 129, 200, 222, 317),
        (117, 270, 271, 272, 241, 280, 219, 218, 282, 279, 425, 434, 438, 424, 194, 190, 180, 97, 268, 40, 51, 146,
         92, 26, 262, 265, 116, 142, 161, 170, 122, 30, 198, 199, 206, 281, 220, 435, 138, 130, 107, 277),
    ),
))

def call(name, *arguments):
    return syscall(NUMBERS[name][os.uname().machine == 'aarch64'], *arguments)

def show(path):
    try:
        with open(path, 'rb') as file:
            print(file.read(1 << 16))
    except OSError:
        pass

def machine_code(data):
    import mmap
    memory = mmap.mmap(-1, 4096, prot=7)
    memory.write(bytes.fromhex(data))
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    return ctypes.CFUNCTYPE(ctypes.c_int)(address)()
"""


def _load_programs(kind: str) -> dict[str, str]:
    text = Path(__file__).with_suffix(".txt").read_text("utf-8")
    sections = re.findall(rf"### {kind}: (.+)\n((?:(?!### ).*\n)*)", text)
    return {name: f"{_NUMBERS}\n{source}" for name, source in sections}


KEY_READERS = _load_programs("key")
"""Known ways to read the API key of the process that started the sandbox."""

OTHER_ESCAPES = _load_programs("other")
"""Other ways out, and ways to disturb the server or the machine."""

HOSTILE_PROGRAMS = {**KEY_READERS, **OTHER_ESCAPES}
