#!/usr/bin/env python3
"""Checks the layers: which folder of src/ may include which others, and which folder may use which system interfaces.

usage: scripts/check_layers.py [ROOT]

A file in a folder of src/ (a room) may include its own folder, folders with a lower number, and public headers. A public
header may include only public and standard headers. Each system interface (CUDA, sockets, shared memory, hwloc, threads,
the environment, the standard streams, the clock) may be used only in its home folders. There is no list of exceptions.
"""

import re
import sys
from pathlib import Path

from cpp_text import code_only, cpp_files, includes

LAYERS = {
    "base": 0,
    "runtime": 1, "topo": 1,
    "backend": 2, "watch": 2, "transport": 2, "store": 2,
    "comm": 3, "model": 3,
    "flow": 4, "nccl": 4, "nccl_net": 4,
    "cli": 5,
}

# (interface, pattern of the included header, pattern of the paths below src/ that may include it, the same for messages)
HEADER_HOMES = [
    ("CUDA header",
     r"(cuda|cublas|cudnn|cufft|curand|nvrtc|nvml|nvToolsExt|driver_types|device_launch|cooperative_groups|mma\.h)"
     r"|(nvtx3|cub|thrust|cuda)/",
     r"(backend|model)/cuda/|(comm|flow)/(.*/)?cuda[_./]|nccl/(cuda_|nccl\.h$)",
     "backend/cuda, model/cuda, comm/cuda*, flow/cuda*, nccl/cuda_*, nccl/nccl.h"),
    ("network or shared-memory header",
     r"(sys/(socket|un|epoll|shm|ipc)|netinet/.*|arpa/inet|netdb|net/if.*|ifaddrs|poll|sys/poll|infiniband/.*)\.h$",
     r"transport/", "transport"),
    ("hwloc header", r"hwloc(\.h$|/)", r"topo/", "topo"),
    ("thread header", r"(thread|pthread\.h)$", r"base/", "base"),
    ("stream header", r"iostream$", r"(base|cli)/", "base (and cli)"),
]

# (interface, pattern in the code without comments and literals, pattern of the paths that may use it, for messages)
CODE_HOMES = [
    ("thread", r"\bstd::j?thread\b|\bpthread_create\b", r"base/", "base"),
    ("environment", r"\b(secure_)?getenv\b|\b(set|unset|put)env\b|\benviron\b", r"base/", "base"),
    ("standard stream", r"\bstd::(cout|cerr|clog|cin)\b|\b(stdout|stderr|stdin)\b|\bperror\s*\(",
     r"(base|cli)/", "base (and cli)"),
    ("clock",
     r"\b(steady|system|high_resolution|utc)_clock\b|\bclock_gettime\b|\bgettimeofday\b|\btimespec_get\b|\bstd::time\b",
     r"base/", "base"),
    ("socket call", r"(?<![\w.>:])::?socket\s*\(|\bepoll_\w+\s*\(", r"transport/", "transport"),
    ("shared memory", r"\bmemfd_create\b|\bshm_open\b|\bshmget\b", r"transport/", "transport"),
]


class Checker:
    def __init__(self, root):
        self.root = Path(root).resolve()
        self.src = self.root / "src"
        self.public = self.root / "include"
        self.faults = []

    def fault(self, path, line, text):
        self.faults.append(f"{path.relative_to(self.root)}:{line}: {text}")

    def room_of(self, path, include):
        """The folder of src/ that contains the included file; "" for a public header; None for another file."""
        if include.startswith("slip/"):
            return ""
        for base in (self.src, path.parent, self.public):
            target = (base / include).resolve()
            if target.is_file():
                if target.is_relative_to(self.src):
                    return target.relative_to(self.src).parts[0]
                if target.is_relative_to(self.public):
                    return ""
        first = include.split("/")[0]
        return first if first in LAYERS else None

    def check_room_includes(self, path, room, text):
        for line, include, _ in includes(text):
            other = self.room_of(path, include)
            if not other or other == room:
                continue
            if other not in LAYERS:
                self.fault(path, line, f"includes \"{include}\": src/{other} has no layer number")
            elif LAYERS[other] >= LAYERS[room]:
                self.fault(path, line, f"{room} (layer {LAYERS[room]}) must not include \"{include}\": "
                                       f"{other} is layer {LAYERS[other]}; only lower layers may be included")

    def check_homes(self, path, text):
        inside = path.relative_to(self.src).as_posix() if path.is_relative_to(self.src) else "include/slip/"
        for line, include, _ in includes(text):
            for what, pattern, home, words in HEADER_HOMES:
                if re.match(pattern, include) and not re.match(home, inside):
                    self.fault(path, line, f"{what} <{include}> belongs in {words} only")
        for number, code in enumerate(code_only(text).splitlines(), 1):
            if code.lstrip().startswith("#"):
                continue
            for what, pattern, home, words in CODE_HOMES:
                found = re.search(pattern, code)
                if found and not re.match(home, inside):
                    self.fault(path, number, f"{what} ({found.group(0).strip()}) belongs in {words} only")

    def check_public_header(self, path, text):
        for line, include, quoted in includes(text):
            room = self.room_of(path, include)
            if room == "":
                continue
            if room is not None:
                self.fault(path, line, f"a public header must not include the private \"{include}\"")
            elif quoted or "/" in include or include.endswith(".hpp"):
                self.fault(path, line, f"a public header must not include {include}: "
                                       "only public and standard headers, so that users need nothing else")

    def run(self):
        for path in cpp_files(self.public):
            text = path.read_text(encoding="utf-8")
            self.check_public_header(path, text)
            self.check_homes(path, text)
        for path in cpp_files(self.src):
            room = path.relative_to(self.src).parts[0]
            if room not in LAYERS:
                self.fault(path, 1, f"src/{room} has no layer number; rooms are {', '.join(LAYERS)}")
                continue
            text = path.read_text(encoding="utf-8")
            self.check_room_includes(path, room, text)
            self.check_homes(path, text)
        return self.faults


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    faults = Checker(root).run()
    for fault in faults:
        print(fault)
    print(f"check_layers: {len(faults)} fault(s)" if faults else "check_layers: ok")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
