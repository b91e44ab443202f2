"""A PyTorch program made for NCCL, unchanged: several ranks on one GPU, each result compared with a reference.

usage: slip launch -n 2 --nccl -- python3 tests/clients/torch_ranks.py [TEST...]

Tests: collectives messages groups ddp fsdp hook graph (default: all). Every rank uses GPU 0, which NVIDIA's NCCL refuses.
Rank 0 prints a line for each test; the exit status is 0 if all of them passed.
"""

import os
import sys
import time
import traceback

import torch
import torch.distributed as dist
from torch import nn

RANK, RANKS = int(os.environ["SLIP_RANK"]), int(os.environ["SLIP_NRANKS"])
GPU = torch.device("cuda", 0)
SIZES = (1, 7, 1024, 100_003, 3_000_001)
FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
INTEGERS = (torch.int32, torch.int64, torch.uint8, torch.int8)


def input_of(rank, elements, dtype, seed):
    """The same values on every rank, so that each can compute the reference."""
    generator = torch.Generator().manual_seed(seed * 1000 + rank)
    if dtype.is_floating_point:
        return torch.randn(elements, generator=generator, dtype=torch.float64).to(dtype)
    return torch.randint(0, 7, (elements,), generator=generator).to(dtype)


def require(name, actual, expected, dtype):
    actual = actual.cpu()
    if dtype.is_floating_point:
        # Each addition rounds to the type once.
        tolerance = RANKS * torch.finfo(dtype).eps
        ok = torch.allclose(actual.double(), expected.double(), rtol=tolerance, atol=tolerance * 4)
    else:
        ok = torch.equal(actual, expected.to(dtype))
    if not ok:
        wrong = (actual.double() - expected.double()).abs()
        raise AssertionError(f"{name} of {actual.numel()} {dtype}: off by up to {wrong.max().item()}")


def all_inputs(elements, dtype, seed):
    return torch.stack([input_of(rank, elements, dtype, seed) for rank in range(RANKS)])


def test_collectives():
    seed = 1
    for dtype in FLOATS + INTEGERS:
        for elements in SIZES:
            seed += 1
            inputs = all_inputs(elements, dtype, seed)
            wide = inputs.double()
            for op, expected in ((dist.ReduceOp.SUM, wide.sum(0)), (dist.ReduceOp.MAX, wide.amax(0)),
                                 (dist.ReduceOp.MIN, wide.amin(0)), (dist.ReduceOp.PRODUCT, wide.prod(0))):
                if not dtype.is_floating_point and dtype.itemsize == 1 and op == dist.ReduceOp.PRODUCT and RANKS > 2:
                    continue   # overflows
                tensor = inputs[RANK].to(GPU)
                dist.all_reduce(tensor, op)
                require(f"all_reduce {op}", tensor, expected, dtype)
            if dtype.is_floating_point:
                tensor = inputs[RANK].to(GPU)
                dist.all_reduce(tensor, dist.ReduceOp.AVG)
                require("all_reduce avg", tensor, wide.mean(0), dtype)
            tensor = inputs[RANK].to(GPU)
            dist.broadcast(tensor, RANKS - 1)
            require("broadcast", tensor, inputs[RANKS - 1], dtype)
            gathered = torch.empty(RANKS * elements, dtype=dtype, device=GPU)
            dist.all_gather_into_tensor(gathered, inputs[RANK].to(GPU))
            require("all_gather_into_tensor", gathered, inputs.flatten(), dtype)
            parts = all_inputs(RANKS * elements, dtype, seed + 500)
            part = torch.empty(elements, dtype=dtype, device=GPU)
            dist.reduce_scatter_tensor(part, parts[RANK].to(GPU))
            require("reduce_scatter_tensor", part, parts.double().sum(0)[RANK * elements:(RANK + 1) * elements], dtype)
            exchanged = torch.empty(RANKS * elements, dtype=dtype, device=GPU)
            dist.all_to_all_single(exchanged, parts[RANK].to(GPU))
            expected = torch.cat([row[RANK * elements:(RANK + 1) * elements] for row in parts])
            require("all_to_all_single", exchanged, expected, dtype)
            result = inputs[RANK].to(GPU)
            dist.reduce(result, 0)
            if RANK == 0:
                require("reduce", result, wide.sum(0), dtype)
    dist.barrier()
    torch.cuda.synchronize()


def test_messages():
    for turn, elements in enumerate(SIZES):
        own = input_of(RANK, elements, torch.float32, turn).to(GPU)
        got = torch.empty(elements, device=GPU)
        right, left = (RANK + 1) % RANKS, (RANK - 1) % RANKS
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, own, right), dist.P2POp(dist.irecv, got, left)]):
            work.wait()
        require("batch_isend_irecv", got, input_of(left, elements, torch.float32, turn), torch.float32)
    if RANK == 0:
        dist.send(own, 1)
    elif RANK == 1:
        dist.recv(got, 0)
        require("recv", got, input_of(0, SIZES[-1], torch.float32, len(SIZES) - 1), torch.float32)


def test_groups():
    pairs = [dist.new_group([0, 1]), dist.new_group(list(range(RANKS)))]
    for group in pairs:
        if dist.get_rank(group) < 0:
            continue
        tensor = torch.full((1000,), float(RANK + 1), device=GPU)
        dist.all_reduce(tensor, group=group)
        members = dist.get_process_group_ranks(group)
        require("all_reduce in a group", tensor, torch.full((1000,), float(sum(r + 1 for r in members))), torch.float32)


def small_model():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 8)).to(GPU)


def train(model, rows, steps=5):
    """The losses of a few steps on these rows of a fixed batch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(11)
    losses = []
    for _ in range(steps):
        x = torch.randn(8 * RANKS, 64, generator=generator)[rows].to(GPU)
        y = torch.randn(8 * RANKS, 8, generator=generator)[rows].to(GPU)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def compare_with_one_process(name, model, tolerance):
    own = train(model, slice(RANK * 8, (RANK + 1) * 8))
    dist.all_reduce(own, dist.ReduceOp.AVG)
    alone = train(small_model(), slice(0, 8 * RANKS))
    worst = ((own - alone).abs() / alone.abs()).max().item()
    if not worst < tolerance:
        raise AssertionError(f"{name}: losses {own.tolist()}, one process {alone.tolist()}")


def test_ddp():
    from torch.nn.parallel import DistributedDataParallel
    compare_with_one_process("DDP", DistributedDataParallel(small_model(), device_ids=[0]), 1e-5)


def test_hook():
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
    from torch.nn.parallel import DistributedDataParallel
    model = DistributedDataParallel(small_model(), device_ids=[0])
    model.register_comm_hook(None, fp16_compress_hook)
    compare_with_one_process("DDP with fp16 compression", model, 1e-2)


def test_fsdp():
    from torch.distributed.fsdp import FullyShardedDataParallel
    torch.manual_seed(5)

    def transformer():
        torch.manual_seed(5)
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).to(GPU)

    def losses(model, rows):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        generator = torch.Generator().manual_seed(17)
        result = []
        for _ in range(4):
            x = torch.randn(4 * RANKS, 16, 64, generator=generator)[rows].to(GPU)
            optimizer.zero_grad()
            loss = model(x).square().mean() + model(x).mean()
            loss.backward()
            optimizer.step()
            result.append(loss.detach())
        return torch.stack(result)

    own = losses(FullyShardedDataParallel(transformer(), device_id=0), slice(RANK * 4, (RANK + 1) * 4))
    dist.all_reduce(own, dist.ReduceOp.AVG)
    alone = losses(transformer(), slice(0, 4 * RANKS))
    worst = ((own - alone).abs() / alone.abs()).max().item()
    if not worst < 1e-4:
        raise AssertionError(f"FSDP: losses {own.tolist()}, one process {alone.tolist()}")


def test_graph():
    tensor = torch.ones(10_000, device=GPU)
    dist.all_reduce(tensor)   # connections exist before the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dist.all_reduce(tensor)
    for turn in range(5):
        tensor.fill_(float(RANK + turn))
        graph.replay()
        torch.cuda.synchronize()
        expected = float(sum(rank + turn for rank in range(RANKS)))
        require("replayed all_reduce", tensor, torch.full((10_000,), expected), torch.float32)


TESTS = {"collectives": test_collectives, "messages": test_messages, "groups": test_groups, "ddp": test_ddp,
         "hook": test_hook, "fsdp": test_fsdp, "graph": test_graph}


def main():
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29517")
    torch.cuda.set_device(GPU)
    dist.init_process_group("nccl", rank=RANK, world_size=RANKS)
    failed = []
    for name in sys.argv[1:] or list(TESTS):
        begin, error = time.monotonic(), ""
        try:
            TESTS[name]()
        except Exception:   # reported, and the next test runs
            error = traceback.format_exc()
            failed.append(name)
        if RANK == 0 or error:
            print(f"rank {RANK}: {name}: {'FAILED' if error else 'ok'}, {time.monotonic() - begin:.2f} s\n{error}", end="",
                  flush=True)
    dist.destroy_process_group()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
