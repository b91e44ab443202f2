#!/usr/bin/env python3
"""ddp.py SLIP LIBNCCL [--quick] - a step of DDP with two ranks on one GPU, against the sum of both ranks' compute alone:

    BAR gpu_ranks ddp_step[_mps] ours both-ranks-compute ratio target ok|missed|skipped

Each rank is a process of PyTorch. Without MPS their kernels are time-sliced: a step cannot take less than both ranks'
compute one after the other. Ours: backend nccl over Slipstream's libnccl.so.2. Peers: NCCL with ranks that pretend to be on
different hosts, and Gloo. `beside`: both ranks compute at the same time and reduce nothing, which is the cost of sharing the
GPU. Times are milliseconds, medians of steps; the target is 1.1 times the sum. Exit status 1: missed.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import time

from compare import Mps

LAYERS, WIDTH, BATCH = 8, 4096, 16384   # 537 MB of gradients in f32, about 45 ms of compute a step and rank
STEPS = 12


def model_of(torch):
    torch.manual_seed(1)
    layers = []
    for _ in range(LAYERS):
        layers += [torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU()]
    return torch.nn.Sequential(*layers).cuda()


def steps(torch, model, reported):
    """The times of steps, each waited for, and the losses."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(BATCH, WIDTH, device="cuda")
    times, losses = [], []
    for _ in range(STEPS):
        torch.cuda.synchronize()
        begin = time.monotonic()
        optimizer.zero_grad(set_to_none=False)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()
        times.append((time.monotonic() - begin) * 1e3)
        losses.append(loss.item())
    if reported:
        print(json.dumps({"ms": times[2:], "losses": losses}), flush=True)


def rank_main(backend, rank):
    import torch
    torch.cuda.set_device(0)
    torch.backends.cuda.matmul.allow_tf32 = True
    model = model_of(torch)
    if backend == "alone":
        return steps(torch, model, True)
    import torch.distributed as dist
    dist.init_process_group("nccl" if backend in ("slip", "nccl") else "gloo", rank=rank, world_size=2)
    if backend == "beside":
        dist.barrier()
    else:
        model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[0])
    steps(torch, model, rank == 0)
    dist.destroy_process_group()


def measure(backend, library, port):
    """The median of the steps in milliseconds, or None if this cannot run here."""
    ranks = []
    for rank in range(1 if backend == "alone" else 2):
        env = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
        if backend == "slip":
            env["LD_PRELOAD"] = library
        if backend == "nccl":
            env.update(NCCL_HOSTID=f"bench-{rank}", NCCL_SOCKET_IFNAME="lo")
        ranks.append(subprocess.Popen([sys.executable, os.path.abspath(__file__), "--rank", backend, str(rank)], env=env, text=True,
                                      stdout=subprocess.PIPE, stderr=subprocess.DEVNULL))
    try:
        text = ranks[0].communicate(timeout=120)[0]
        return statistics.median(json.loads(text.strip().splitlines()[-1])["ms"])
    except (subprocess.TimeoutExpired, ValueError, IndexError):
        return None
    finally:
        for one in ranks:
            one.kill()
            one.wait()


def main():
    if sys.argv[1] == "--rank":
        return rank_main(sys.argv[2], int(sys.argv[3]))
    library = os.path.abspath(sys.argv[2])
    turns = 1 if "--quick" in sys.argv else 3
    has_mps = shutil.which("nvidia-cuda-mps-control") is not None
    seen = {name: [] for name in ("alone", "slip", "beside", "slip_mps", "nccl", "gloo")}
    port = 29540
    for turn in range(turns):
        for name, times in seen.items():
            if name in ("nccl", "gloo", "beside") and turn > 0:
                continue   # for comparison only
            port += 1
            if name != "slip_mps":
                times.append(measure(name, library, port))
            elif has_mps:
                with Mps():
                    times.append(measure("slip", library, port))
    print(json.dumps(seen))
    if None in seen["alone"] or None in seen["slip"]:
        print("BAR gpu_ranks ddp_step - - - - skipped (PyTorch with NCCL did not run)")
        return 1
    both = 2 * statistics.median(seen["alone"])
    missed = 0
    for name, bar in (("slip", "ddp_step"), ("slip_mps", "ddp_step_mps")):
        if not seen[name] or None in seen[name]:
            print(f"BAR gpu_ranks {bar} - - - - skipped (no MPS)")
            continue
        ours = statistics.median(seen[name])
        ok = ours <= 1.1 * both
        missed += not ok
        print(f"BAR gpu_ranks {bar} {ours:.1f} {both:.1f} {ours / both:.3f}x <=1.1 {'ok' if ok else 'missed'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
