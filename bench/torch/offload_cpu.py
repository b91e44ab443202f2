#!/usr/bin/env python3
"""offload_cpu.py OUT.json [--quick] - a model of three times the memory that its process may use, on cpu.

The weights are in a safetensors file. The process that runs the model is in a memory cgroup (version 1 or 2). Its outputs
must be equal to those of a process without a limit. For comparison, the same model runs over a mapping of the file (mmap),
in the same cgroup.

    BAR torch name ours other ratio target ok|missed
"""
import argparse
import contextlib
import json
import mmap
import os
import struct
import subprocess
import sys
import tempfile
import time

import torch

ALLOWED = 640 << 20           # bytes of the cgroup, with Python and torch
SIZE, BLOCKS = 2048, 15       # a block: 2 matrices of 2048 x 8192 floats, 128 MiB
TOKENS = 8


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(SIZE)
        self.up = torch.nn.Linear(SIZE, 4 * SIZE, bias=False)
        self.down = torch.nn.Linear(4 * SIZE, SIZE, bias=False)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


def make_model():
    import slipstream
    with slipstream.empty_weights():
        return torch.nn.Sequential(*(Block() for _ in range(BLOCKS))).eval()


def write_weights(path):
    """Random weights, matrix by matrix."""
    shapes = {name: list(param.shape) for name, param in make_model().named_parameters()}
    header, at = {}, 0
    for name, shape in shapes.items():
        size = 4 * torch.Size(shape).numel()
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-(len(text) + 8) % 64)
    torch.manual_seed(1)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, shape in shapes.items():
            file.write((torch.randn(shape) * 0.02 + (1 if len(shape) == 1 else 0)).numpy().tobytes())
        file.flush()
        os.fsync(file.fileno())
    return at


def drop_from_cache(path):
    """Pages that another process has read would not count in the cgroup."""
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def mapped(path):
    """The model over a mapping of the file."""
    model = make_model()
    with open(path, "rb") as file:
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    length = struct.unpack("<Q", memory[:8])[0]
    header = json.loads(memory[8:8 + length])
    for module_path, module in model.named_modules():
        for name in list(module._parameters):
            if module._parameters[name] is None:
                continue
            entry = header[f"{module_path}.{name}" if module_path else name]
            begin, end = entry["data_offsets"]
            data = torch.frombuffer(memory, dtype=torch.float32, count=(end - begin) // 4, offset=8 + length + begin)
            module._parameters[name] = torch.nn.Parameter(data.view(entry["shape"]), requires_grad=False)
    return model


def peak_of_process():
    for line in open("/proc/self/status", encoding="utf-8"):
        if line.startswith("VmHWM"):
            return int(line.split()[1]) << 10
    return 0


def child(kind, path, steps):
    """Runs in the cgroup; prints one line of JSON."""
    import slipstream
    torch.manual_seed(2)
    x = torch.randn(TOKENS, SIZE)
    if kind == "offload":
        model = slipstream.offload(make_model(), "300MiB", "cpu", weights=path)
    else:   # "mapped" in the cgroup, "resident" without a limit
        model = mapped(path)
    times = []
    with torch.no_grad():
        for _ in range(steps):
            begin = time.perf_counter()
            y = model(x)
            times.append(time.perf_counter() - begin)
    result = {"seconds": min(times[1:] or times), "output": y.double().sum().item(), "bytes": y.numpy().tobytes().hex()[:4096],
              "peak": peak_of_process()}
    if kind == "offload":
        result["plan"] = str(model.slip.plan())
        result["predicted"] = model.slip.predict().seconds
    print(json.dumps(result))


@contextlib.contextmanager
def cgroup(limit):
    """A cgroup with a limit of memory; yields (file that takes a process, file with its peak). Raises OSError: there is none."""
    name = f"slip-offload-{os.getpid()}"
    for root, limit_name, peak_name in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.max_usage_in_bytes"),
                                        ("/sys/fs/cgroup", "memory.max", "memory.peak")):
        folder = os.path.join(root, name)
        try:
            os.mkdir(folder)
        except OSError:
            continue
        try:
            with open(os.path.join(folder, limit_name), "w", encoding="ascii") as file:
                file.write(str(limit))
            yield os.path.join(folder, "cgroup.procs"), os.path.join(folder, peak_name)
            return
        except FileNotFoundError:
            continue
        finally:
            for _ in range(100):
                try:
                    os.rmdir(folder)
                    break
                except OSError:
                    time.sleep(0.05)
    raise OSError("no memory cgroup can be made here")


def run_child(kind, path, steps, procs=None):
    def enter():
        if procs:
            with open(procs, "w", encoding="ascii") as file:
                file.write(str(os.getpid()))
    done = subprocess.run([sys.executable, "-B", os.path.abspath(__file__), "--child", kind, path, str(steps)], preexec_fn=enter,
                          capture_output=True, text=True, timeout=900, check=False)
    if done.returncode != 0:
        return {"failed": f"exit status {done.returncode}: {done.stderr.strip()[-300:]}"}
    return json.loads(done.stdout.strip().splitlines()[-1])


def main():
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], sys.argv[3], int(sys.argv[4]))
        return 0
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    steps = 4 if options.quick else 6
    rows, missed = [], 0

    def bar(name, ours, other, ratio, target, ok):
        nonlocal missed
        missed += not ok
        rows.append(f"BAR torch offload_cpu_{name} {ours} {other} {ratio} {target} {'ok' if ok else 'missed'}")
        print(rows[-1], flush=True)

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.safetensors")
        size = write_weights(path)
        found = {}
        try:
            for kind in ("offload", "mapped") * 2:   # twice: the disk may be quicker the second time
                drop_from_cache(path)
                with cgroup(ALLOWED) as (procs, peak):
                    one = run_child(kind, path, steps, procs)
                    with contextlib.suppress(OSError):
                        one["cgroup_peak"] = int(open(peak, encoding="ascii").read())
                if kind not in found or one.get("seconds", 1e9) < found[kind].get("seconds", 1e9):
                    found[kind] = one
        except OSError as error:
            print(f"BAR torch offload_cpu - - - - skipped ({error})")
            return 0
        found["resident"] = run_child("resident", path, 2)
    ours, peer, plain = found["offload"], found["mapped"], found["resident"]
    if "failed" in ours:
        bar("runs", "no", "-", "-", "runs", False)
        print("   ", ours["failed"])
    else:
        print("   ", ours["plan"].replace("\n", "\n    "), f"predicted {ours['predicted']:.3g} s, measured {ours['seconds']:.3g} s")
        bar("weights_to_memory", f"{size / 1e9:.3g}GB", f"{ALLOWED / 1e9:.3g}GB", f"{size / ALLOWED:.2f}x", ">=3x",
            size >= 2.99 * ALLOWED)
        same = ours["output"] == plain["output"] and ours["bytes"] == plain["bytes"]
        bar("equal", "yes" if same else "no", "resident", "-", "equal", same)
        for what in ("peak", "cgroup_peak"):
            if what in ours:
                bar(what, f"{ours[what] / 1e6:.0f}MB", f"{ALLOWED / 1e6:.0f}MB", f"{ours[what] / ALLOWED:.2f}x", "<=1.1x",
                    ours[what] <= 1.1 * ALLOWED)
        print("    over a mapping of the file:", peer.get("failed") or f"{peer['seconds']:.3g} s")
    with open(options.out, "w", encoding="utf-8") as file:
        json.dump({"found": found, "rows": rows}, file, indent=1)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
