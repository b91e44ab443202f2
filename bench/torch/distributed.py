#!/usr/bin/env python3
"""distributed.py OUT.json [--quick] - torch.distributed on cpu tensors: the backend "slip" against Gloo.

Both backends are process groups of the same ranks in one run, and take turns: a batch of calls each, many times. The
time of a batch is that of its slowest rank. Medians of the batches are compared:

    BAR torch name ours gloo ratio target ok|missed

The ratio is how many times as fast ours is. Exit status 1: a bar is missed.
"""
import argparse
import json
import multiprocessing
import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import slipstream.distributed   # noqa: F401  registers the backend

SIZES = [8, 512, 4 << 10, 32 << 10, 256 << 10, 2 << 20, 16 << 20, 64 << 20]
RATIO_FROM = 32 << 10   # from this size on at least RATIO times as fast, below it faster at all
RATIO = 1.5
BACKENDS = ("slip", "gloo")


def human(size):
    for unit, shift in (("MiB", 20), ("KiB", 10)):
        if size >= 1 << shift:
            return f"{size >> shift}{unit}"
    return f"{size}B"


def slowest(seconds, group):
    """The time of the slowest rank, by the backend that is not being measured at the moment."""
    tensor = torch.tensor([seconds], dtype=torch.float64)
    dist.all_reduce(tensor, dist.ReduceOp.MAX, group=group)
    return tensor.item()


def take_turns(groups, functions, batches, seconds_each):
    """Medians of the time of one call, by backend. functions: by backend."""
    counts = {}
    for name in BACKENDS:   # also warms up
        functions[name]()
        begin = time.perf_counter()
        for _ in range(3):
            functions[name]()
        each = slowest((time.perf_counter() - begin) / 3, groups["gloo"])
        counts[name] = max(1, min(2000, int(seconds_each / each)))
    times = {name: [] for name in BACKENDS}
    for batch in range(batches):
        for name in BACKENDS if batch % 2 == 0 else reversed(BACKENDS):
            dist.barrier(group=groups[name])
            begin = time.perf_counter()
            for _ in range(counts[name]):
                functions[name]()
            taken = (time.perf_counter() - begin) / counts[name]
            times[name].append(slowest(taken, groups["gloo"]))
    return {name: statistics.median(times[name]) for name in BACKENDS}


def all_reduces(groups, size, batches, seconds_each):
    tensor = torch.zeros(size // 4)
    return take_turns(groups, {name: lambda group=groups[name]: dist.all_reduce(tensor, group=group)
                               for name in BACKENDS}, batches, seconds_each)


def ddp_step(groups, batches, seconds_each):
    """A training step of a network with 4.2 million parameters."""
    functions = {}
    for name in BACKENDS:
        torch.manual_seed(1)
        layers = [torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.ReLU()) for _ in range(4)]
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers), process_group=groups[name],
                                                          bucket_cap_mb=4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        inputs = torch.randn(16, 1024)

        def step(model=model, optimizer=optimizer, inputs=inputs):
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
        functions[name] = step
    return take_turns(groups, functions, batches, seconds_each)


def rank_main(connection, rank, ranks, init, quick):
    torch.set_num_threads(1)
    dist.init_process_group("slip", init_method=init, rank=rank, world_size=ranks)
    groups = {"slip": dist.group.WORLD, "gloo": dist.new_group(list(range(ranks)), backend="gloo")}
    batches, seconds_each = (5, 0.02) if quick else (21, 0.05)
    for size in SIZES:
        times = all_reduces(groups, size, batches, seconds_each)
        target = f">={RATIO}" if size >= RATIO_FROM else ">1"
        if rank == 0:
            connection.send((f"all_reduce_{ranks}_ranks_{human(size)}", times, target))
    times = ddp_step(groups, batches, seconds_each)
    if rank == 0:
        connection.send((f"ddp_step_{ranks}_ranks", times, ">1"))
    dist.barrier()
    dist.destroy_process_group()


def time_text(seconds):
    return f"{seconds * 1e6:.3g}us" if seconds < 1e-3 else f"{seconds * 1e3:.3g}ms"


def measure(ranks, quick):
    """Yields (name, times, target) as they come."""
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = context.Pipe(duplex=False)
        processes = [context.Process(target=rank_main, args=(theirs, rank, ranks, f"file://{folder}/store", quick))
                     for rank in range(ranks)]
        for process in processes:
            process.start()
        theirs.close()
        try:
            while True:
                if not ours.poll(300):
                    raise TimeoutError(f"{ranks} ranks: no result in 300 s")
                yield ours.recv()
        except EOFError:
            pass
        finally:
            for process in processes:
                process.join(30)
                if process.exitcode is None:
                    process.kill()
        if any(process.exitcode for process in processes):
            raise RuntimeError(f"{ranks} ranks: exit codes {[process.exitcode for process in processes]}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4])
    options = parser.parse_args()
    rows, missed = [], 0
    for ranks in options.ranks:
        for name, times, target in measure(ranks, options.quick):
            ratio = times["gloo"] / times["slip"]
            ok = ratio >= RATIO if target.startswith(">=") else ratio > 1
            missed += not ok
            shown = int(ratio * 100) / 100   # rounded down: no row looks better than it was judged
            row = (f"BAR torch {name} {time_text(times['slip'])} {time_text(times['gloo'])} {shown:.2f}x {target}x "
                   f"{'ok' if ok else 'missed'}")
            print(row, flush=True)
            rows.append({"row": row, "name": name, "slip_s": times["slip"], "gloo_s": times["gloo"], "ratio": ratio,
                         "target": target, "ok": ok})
    with open(options.out, "w", encoding="utf-8") as file:
        json.dump({"torch": torch.__version__, "rows": rows}, file, indent=1)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
