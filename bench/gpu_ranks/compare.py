#!/usr/bin/env python3
"""compare.py SLIP OUT.json [--quick] - collectives of two ranks on one GPU, in turns with the peers, medians:

    BAR gpu_ranks name ours peer ratio target ok|missed|skipped

First all_reduce. Then the other collectives and sendrecv: their target is 1.5 times what the targets of all_reduce imply.
One call of all_reduce moves 4 x size through the memory of the GPU (both ranks read and write their buffers); the others
move the multiple that MOVED says; none needs to be faster than an all_reduce of 8 B.

Ours: `slip bench all_reduce --device cuda:0` as threads, as processes under MPS, and as processes without it. Peers: NCCL,
which runs two ranks on one GPU only if each pretends to be another host (NCCL_HOSTID), and Gloo, both through PyTorch.
Times are microseconds; above 4 MiB the bars are of the bus bandwidth, which for two ranks is bytes / time, in GB/s.
Exit status 1: a bar is missed.
"""

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

KIB, MIB = 1 << 10, 1 << 20
SIZES = (8, 4 * MIB, 64 * MIB, 256 * MIB)
# What must be reached: by way, by size. us up to 4 MiB, GB/s above.
TARGETS = {"processes": (60, 160, 250, 500), "mps": (10, 12, 900, 960), "threads": (8, None, None, 950)}


MOVED = {"all_gather": 4, "reduce_scatter": 3, "all_to_all": 4, "broadcast": 4, "reduce": 3, "gather": 2, "scatter": 2,
         "sendrecv": 4}   # bytes read and written by both ranks, in units of the size that the benchmark prints


def calls_of(size, peer):
    if peer:
        return 20 if size <= 4 * MIB else 3
    return 300 if size <= 4 * MIB else 60


def measure(slip, way, op, begin, end, factor, calls):
    """The time of a call in microseconds by size, out of place; every result is checked."""
    command = [slip, "bench", op, "--device", "cuda:0", "-n", "2", "-b", str(begin), "-e", str(end), "-f", str(factor),
               "--iters", str(calls), "--warmup", "40"]
    if way == "threads":
        command.append("--threads")
    text = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
    rows = [line.split() for line in text.splitlines() if re.match(r"\s*\d+\s+\d+\s+F32", line)]
    for row in rows:
        if row[8] != "0" or row[12] not in ("0", "-"):
            raise SystemExit(f"{op}, {way}: wrong elements: {row}")
    return {int(row[0]): float(row[5]) for row in rows}


def ours(slip, way, size):
    """The time of an all_reduce in microseconds."""
    return measure(slip, way, "all_reduce", size, size, 2, calls_of(size, False))[size]


def peer_main(backend, rank):
    """A rank of a peer: prints the time of a call for each size."""
    import torch
    import torch.distributed as dist
    torch.cuda.set_device(0)
    dist.init_process_group(backend, rank=rank, world_size=2)
    times = []
    for size in SIZES:
        tensor = torch.ones(size // 4, device="cuda")
        for _ in range(2):
            dist.all_reduce(tensor)
        torch.cuda.synchronize()
        calls = calls_of(size, True)
        begin = time.monotonic()
        for _ in range(calls):
            dist.all_reduce(tensor)
        torch.cuda.synchronize()
        times.append((time.monotonic() - begin) / calls * 1e6)
    if rank == 0:
        print(json.dumps(times), flush=True)
    dist.destroy_process_group()


def peer(backend):
    """Times by size, or None if the peer cannot run here."""
    ranks = []
    for rank in range(2):
        env = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT="29531", NCCL_HOSTID=f"bench-{rank}",
                   NCCL_SOCKET_IFNAME="lo", GLOO_SOCKET_IFNAME="lo")
        ranks.append(subprocess.Popen([sys.executable, __file__, "--peer", backend, str(rank)], env=env, text=True,
                                      stdout=subprocess.PIPE, stderr=subprocess.DEVNULL))
    try:
        text = ranks[0].communicate(timeout=120)[0]
        return json.loads(text.strip().splitlines()[-1])
    except (subprocess.TimeoutExpired, ValueError, IndexError):
        return None
    finally:
        for one in ranks:
            one.kill()
            one.wait()


class Mps:
    """The MPS daemon, with folders of its own, while it is used."""

    def __enter__(self):
        self.folder = tempfile.mkdtemp()
        os.environ["CUDA_MPS_PIPE_DIRECTORY"] = os.path.join(self.folder, "pipe")
        os.environ["CUDA_MPS_LOG_DIRECTORY"] = os.path.join(self.folder, "log")
        os.makedirs(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
        subprocess.run(["nvidia-cuda-mps-control", "-d"], check=True)
        return self

    def __exit__(self, *_):
        subprocess.run(["nvidia-cuda-mps-control"], input="quit\n", text=True, check=False)
        for name in ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"):
            del os.environ[name]
        shutil.rmtree(self.folder, ignore_errors=True)


def implied(way, size, op):
    """The time in microseconds that the targets of all_reduce imply for this collective. Between the sizes of the targets
    it is interpolated."""
    points = [(at, t if at <= 4 * MIB else at / t / 1e3) for at, t in zip(SIZES, TARGETS[way]) if t is not None]
    for (low, fast), (high, slow) in zip(points, points[1:]):
        if size <= high:
            all_reduce = fast + (slow - fast) * (size - low) / (high - low)
            return max(points[0][1], all_reduce * MOVED[op] / 4)
    raise ValueError(size)


def others(slip, way, rows, turns):
    """Measures the other collectives, and returns the number of bars that are missed."""
    missed = 0
    for op in MOVED:
        runs = [measure(slip, way, op, 8, 256 * MIB, 32, 40) for _ in range(turns)]
        for size in sorted(runs[0]):
            limit = implied(way, size, op)
            us = statistics.median(run[size] for run in runs)
            ok = us <= 1.5 * limit
            missed += not ok
            print(f"BAR gpu_ranks {op}_{way}_{label(size).replace(' ', '')} {us:.1f} {limit:.1f} {limit / us:.2f}x "
                  f"<={1.5 * limit:.1f} {'ok' if ok else 'missed'}", flush=True)
            rows.append({"op": op, "way": way, "bytes": size, "us": us, "implied_us": limit, "ok": ok})
    return missed


def label(size):
    return f"{size} B" if size < KIB else f"{size // KIB} KiB" if size < MIB else f"{size // MIB} MiB"


def main():
    if sys.argv[1] == "--peer":
        return peer_main(sys.argv[2], int(sys.argv[3]))
    slip, out = sys.argv[1], sys.argv[2]
    turns = 1 if "--quick" in sys.argv else 3
    seen = {way: [[] for _ in SIZES] for way in TARGETS}
    peers = {"nccl": [], "gloo": []}
    has_mps = shutil.which("nvidia-cuda-mps-control") is not None
    for _ in range(turns):
        for way in ("threads", "processes"):
            for i, size in enumerate(SIZES):
                seen[way][i].append(ours(slip, way, size))
        if has_mps:
            with Mps():
                for i, size in enumerate(SIZES):
                    seen["mps"][i].append(ours(slip, "mps", size))
        for backend, times in peers.items():
            if len(times) < 2:   # they take long, and differ little
                times.append(peer(backend))
    best = [min((statistics.median(t[i] for t in runs) for runs in peers.values() if all(runs)), default=None)
            for i in range(len(SIZES))]
    rows, missed = [], 0
    for way, targets in TARGETS.items():
        for i, size in enumerate(SIZES):
            if not seen[way][i] or targets[i] is None:
                continue
            us = statistics.median(seen[way][i])
            rate = size > 4 * MIB
            value, other = (size / us / 1e3, best[i] and size / best[i] / 1e3) if rate else (us, best[i])
            ok = value >= targets[i] if rate else value <= targets[i]
            missed += not ok
            ratio = f"{best[i] / us:.0f}x" if best[i] else "-"
            print(f"BAR gpu_ranks {way}_{label(size).replace(' ', '')} {value:.1f} {f'{other:.1f}' if other else '-'} {ratio} "
                  f"{'>=' if rate else '<='}{targets[i]} {'ok' if ok else 'missed'}", flush=True)
            rows.append({"way": way, "bytes": size, "us": us, "best_peer_us": best[i], "target": targets[i], "ok": ok})
    for way in ("threads", "processes"):
        missed += others(slip, way, rows, turns)
    if has_mps:
        with Mps():
            missed += others(slip, "mps", rows, turns)
    with open(out, "w", encoding="utf-8") as file:
        json.dump({"rows": rows, "peers_us": peers}, file, indent=1)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
