#!/usr/bin/env python3
"""The backend "slip" of torch.distributed. Every result is compared with one that is computed by hand.

usage: PYTHONPATH=build/release/python python3 tests/python/test_distributed.py [SUITE...]
Exit status 77: torch, or the extension, is missing.
"""

import functools
import operator
import os
import random
import signal
import socket
import sys
import tempfile
import unittest

try:
    import torch
    import torch.distributed as dist
    import slipstream.distributed   # noqa: F401
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

from ranks import run_ranks

SEED = int(os.environ.get("SEED", random.randrange(1 << 30)))
REDUCED = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.uint8, torch.int32, torch.int64]
MOVED = REDUCED + [torch.bool, torch.int16, torch.complex64]
OPS = {dist.ReduceOp.SUM: operator.add, dist.ReduceOp.PRODUCT: operator.mul, dist.ReduceOp.MIN: torch.minimum,
       dist.ReduceOp.MAX: torch.maximum, dist.ReduceOp.AVG: operator.add}
SHAPES = [(1,), (7, 3), (1000,), (300, 1001)]


def values(rank, shape, dtype, key=0):
    """The input of a rank, which every rank can compute. Sums and products of 4 such values are exact in each type."""
    generator = torch.Generator().manual_seed(SEED + 1000 * key + rank)
    return torch.randint(1, 4, shape, generator=generator).to(dtype)


def reduced(op, parts):
    """Exact, and of the type of the parts."""
    wide = torch.float64 if parts[0].dtype.is_floating_point else torch.int64
    result = functools.reduce(OPS[op], [part.to(wide) for part in parts])
    if op == dist.ReduceOp.AVG:
        result = torch.div(result, len(parts), rounding_mode=None if wide == torch.float64 else "trunc")
    return result.to(parts[0].dtype)


def expect(got, wanted):
    if got.dtype != wanted.dtype or got.shape != wanted.shape or not torch.equal(got, wanted):
        raise AssertionError(f"seed {SEED}: got {got.dtype} {tuple(got.shape)}\n{got}\nexpected {wanted.dtype}\n{wanted}")


def raises(text, function, *args, **kwargs):
    """The function must raise a RuntimeError whose text contains all of `text`."""
    try:
        function(*args, **kwargs)
    except RuntimeError as error:
        for part in [text] if isinstance(text, str) else text:
            if part not in str(error):
                raise AssertionError(f"'{part}' is not in the error: {error}") from error
        return
    raise AssertionError(f"no error; expected one with {text}")


def twisted(tensor):
    """The same values in memory that is not contiguous."""
    wide = torch.empty(*tensor.shape, 2, dtype=tensor.dtype)
    wide[..., 0] = tensor
    return wide[..., 0]


def same(tensor):
    return tensor


# Programs of a rank ---------------------------------------------------------------------------------------------------


def all_reduces(rank, size):
    for shape in SHAPES:
        for dtype in REDUCED:
            parts = [values(r, shape, dtype) for r in range(size)]
            for op in OPS:
                tensor = parts[rank].clone()
                dist.all_reduce(tensor, op)
                expect(tensor, reduced(op, parts))
    for shape in SHAPES:   # real values: the bits are those of a sum in rank order
        parts = [torch.randn(shape, generator=torch.Generator().manual_seed(SEED + r)) for r in range(size)]
        tensor = parts[rank].clone()
        dist.all_reduce(tensor)
        expect(tensor, functools.reduce(operator.add, parts))
    tensors = [values(rank, shape, torch.float32, 1) for shape in SHAPES]
    dist.all_reduce_coalesced(tensors)
    for shape, tensor in zip(SHAPES, tensors):
        expect(tensor, reduced(dist.ReduceOp.SUM, [values(r, shape, torch.float32, 1) for r in range(size)]))
    empty = torch.empty(0)
    dist.all_reduce(empty)


def reductions(rank, size, form):
    for shape in SHAPES:
        for dtype in REDUCED:
            parts = [values(r, shape, dtype) for r in range(size)]
            for root in range(size):
                tensor = form(parts[rank].clone())
                dist.reduce(tensor, root, dist.ReduceOp.MAX)
                if rank == root:
                    expect(tensor, reduced(dist.ReduceOp.MAX, parts))
            blocks = [[values(r, shape, dtype, key) for key in range(size)] for r in range(size)]   # by rank, for rank
            wanted = reduced(dist.ReduceOp.SUM, [blocks[r][rank] for r in range(size)])
            output = form(torch.zeros(shape, dtype=dtype))
            dist.reduce_scatter(output, [form(block) for block in blocks[rank]])
            expect(output, wanted)
            output.zero_()
            dist.reduce_scatter_tensor(output, form(torch.cat(blocks[rank])))
            expect(output, wanted)


def movements(rank, size, form):
    for shape in SHAPES:
        for dtype in MOVED:
            parts = [values(r, shape, dtype) for r in range(size)]
            for root in range(size):
                tensor = form(parts[rank].clone())
                dist.broadcast(tensor, root)
                expect(tensor, parts[root])
                outputs = [form(torch.zeros(shape, dtype=dtype)) for _ in range(size)] if rank == root else None
                dist.gather(form(parts[rank]), outputs, root)
                if rank == root:
                    for output, part in zip(outputs, parts):
                        expect(output, part)
                tensor = form(torch.zeros(shape, dtype=dtype))
                dist.scatter(tensor, [form(part) for part in parts] if rank == root else None, root)
                expect(tensor, parts[rank])
            outputs = [form(torch.zeros(shape, dtype=dtype)) for _ in range(size)]
            dist.all_gather(outputs, form(parts[rank]))
            for output, part in zip(outputs, parts):
                expect(output, part)
            whole = torch.zeros(size * shape[0], *shape[1:], dtype=dtype)
            dist.all_gather(list(whole.chunk(size)), form(parts[rank]))   # adjacent: without a copy
            expect(whole, torch.cat(parts))
            whole = form(torch.zeros_like(whole))
            dist.all_gather_into_tensor(whole, form(parts[rank]))
            expect(whole, torch.cat(parts))
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * rank})
    if objects != [{"rank": r, "text": "x" * r} for r in range(size)]:
        raise AssertionError(f"all_gather_object: {objects}")
    dist.barrier()


def exchanges(rank, size, form):
    for dtype in MOVED:
        for columns in (1, 50, 20000):
            rows = [[(from_ + 2 * to) % 4 for to in range(size)] for from_ in range(size)]   # also 0
            blocks = [[values(from_, (rows[from_][to], columns), dtype, to) for to in range(size)]
                      for from_ in range(size)]
            wanted = [blocks[from_][rank] for from_ in range(size)]
            output = form(torch.zeros(sum(rows[f][rank] for f in range(size)), columns, dtype=dtype))
            dist.all_to_all_single(output, form(torch.cat(blocks[rank])), [rows[f][rank] for f in range(size)],
                                   rows[rank])
            expect(output, torch.cat(wanted))
            outputs = [form(torch.zeros_like(block)) for block in wanted]
            dist.all_to_all(outputs, [form(block) for block in blocks[rank]])
            for got, block in zip(outputs, wanted):
                expect(got, block)
            output = form(torch.zeros(3 * size, columns, dtype=dtype))
            dist.all_to_all_single(output, form(values(rank, (3 * size, columns), dtype)))
            expect(output, torch.cat([values(f, (3 * size, columns), dtype)[3 * rank:3 * rank + 3]
                                      for f in range(size)]))


def strided_all_reduces(rank, size):
    for dtype in REDUCED:
        parts = [values(r, (40, 30), dtype) for r in range(size)]
        wanted = reduced(dist.ReduceOp.SUM, parts)
        for form in (twisted, lambda t: t.t().contiguous().t()):
            tensor = form(parts[rank])
            dist.all_reduce(tensor)
            expect(tensor, wanted)
        whole = torch.zeros(40, 60, dtype=dtype)   # the elements between are not touched
        whole[:, ::2] = parts[rank]
        dist.all_reduce(whole[:, ::2])
        expect(whole[:, ::2], wanted)
        expect(whole[:, 1::2], torch.zeros(40, 30, dtype=dtype))


def refusals(rank, size):
    one = torch.ones(4)
    raises("Bool", dist.all_reduce, torch.ones(4, dtype=torch.bool))
    raises("Short", dist.reduce, torch.ones(4, dtype=torch.int16), 0)
    raises("Complex", dist.reduce_scatter_tensor, torch.ones(1, dtype=torch.complex64),
           torch.ones(size, dtype=torch.complex64))
    raises("BAND", dist.all_reduce, torch.ones(4, dtype=torch.int32), dist.ReduceOp.BAND)
    raises("BXOR", dist.all_reduce, torch.ones(4, dtype=torch.int32), dist.ReduceOp.BXOR)
    raises("Sparse", dist.all_reduce_coalesced, [one, one.to_sparse()])
    raises("one for each rank", dist.all_gather, [torch.ones(4)] * (size + 1), one)
    raises(["3 elements", "4"], dist.all_gather, [torch.ones(3)] * size, one)
    raises("the number of ranks", dist.all_gather_into_tensor, torch.ones(4 * size + 1), one)
    raises(["split", "equally"], dist.all_to_all_single, torch.ones(size + 1), torch.ones(size + 1))
    raises("sum", dist.all_to_all_single, torch.ones(size), torch.ones(size), [1] * size, [1] * (size - 1) + [0])
    raises("one for each rank", dist.all_to_all_single, torch.ones(size), torch.ones(size), [1], [1])
    for shared in (torch.ones(1).expand(4), torch.ones(1, 4).expand(2, 4)[:, ::2]):   # elements that share memory
        raises("single memory location", dist.all_reduce, shared)
        raises("single memory location", dist.all_gather, [shared] * size, torch.ones(shared.shape))
    raises("any rank", dist.recv, one)
    raises("tag", dist.send, one, (rank + 1) % size, tag=7)
    dist.all_reduce(one)   # nothing was begun, so the group still works
    expect(one, torch.full((4,), float(size)))


def many_works(rank, size):
    works, tensors = [], []
    for key in range(200):
        tensor = values(rank, (1 + 97 * (key % 40),), torch.float32, key)
        works.append(dist.all_reduce(tensor, async_op=True))
        tensors.append(tensor)
    works[120].wait()
    for work in works[:120]:   # in order
        if not work.is_completed():
            raise AssertionError("a work is complete before an earlier one")
    for work in works:
        work.wait()
        work.wait()
        if not (work.is_completed() and work.is_success()):
            raise AssertionError("not complete after wait()")
    for key, tensor in enumerate(tensors):
        expect(tensor, reduced(dist.ReduceOp.SUM, [values(r, tensor.shape, torch.float32, key) for r in range(size)]))
    expect(works[3].result()[0], tensors[3])
    for _ in range(100):   # works and tensors that nobody keeps
        dist.all_reduce(torch.ones(5000), async_op=True)
    last = torch.ones(3)
    dist.all_reduce(last)
    expect(last, torch.full((3,), float(size)))


def futures(rank, size):
    first, second = torch.ones(1000), torch.full((10,), float(rank))
    order = []

    def another(done):   # a callback may call the group
        order.append("first")
        expect(done.value()[0], torch.full((1000,), float(size)))
        return dist.all_reduce(second, async_op=True).get_future().wait()[0]

    future = dist.all_reduce(first, async_op=True).get_future().then(another)
    expect(future.wait(), torch.full((10,), float(size * (size - 1) // 2)))
    late = dist.all_reduce(first, async_op=True)
    late.wait()
    expect(late.get_future().wait()[0], torch.full((1000,), float(size * size)))   # asked for after the end
    if order != ["first"]:
        raise AssertionError(f"callbacks ran: {order}")


def wait_times_out(rank, size):
    import datetime
    tensor = torch.ones(10)
    if rank == 0:
        work = dist.all_reduce(tensor, async_op=True)
        raises(["not complete", "50 ms"], work.wait, datetime.timedelta(milliseconds=50))
        if work.is_completed():
            raise AssertionError("complete without the other ranks")
        dist.distributed_c10d._get_default_store().set("go", "1")
        work.wait()
    else:
        dist.distributed_c10d._get_default_store().wait(["go"])
        dist.all_reduce(tensor)
    expect(tensor, torch.full((10,), float(size)))


def messages(rank, size):
    right, left = (rank + 1) % size, (rank - 1) % size
    for elements in (0, 1, 1000, 2_000_000):   # the last one is more than any buffer between ranks
        for form in (same, twisted):
            out, into = form(values(rank, (elements,), torch.float32)), form(torch.zeros(elements))
            sent, received = dist.isend(out, right), dist.irecv(into, left)
            sent.wait()
            received.wait()
            expect(into, values(left, (elements,), torch.float32))
            into = form(torch.zeros(elements))
            for request in dist.batch_isend_irecv([dist.P2POp(dist.isend, out, right),
                                                   dist.P2POp(dist.irecv, into, left)]):
                request.wait()
            expect(into, values(left, (elements,), torch.float32))
    if rank == 0:
        for key in range(100):
            dist.send(torch.full((key,), float(key)), 1)
    if rank == 1:
        for key in range(100):   # in the order in which they were sent
            into = torch.zeros(key)
            dist.recv(into, 0)
            expect(into, torch.full((key,), float(key)))
    # A receive that waits blocks no collective.
    into = torch.zeros(5)
    work = dist.irecv(into, left)
    one = torch.ones(3)
    dist.all_reduce(one)
    dist.send(torch.full((5,), float(rank)), right)
    work.wait()
    expect(into, torch.full((5,), float(left)))


def unmatched_receive(rank, size):
    work = dist.irecv(torch.zeros(3), (rank + 1) % size)
    dist.barrier()
    dist.destroy_process_group()   # must not wait for the message
    raises("message from rank", work.wait)


def groups(rank, size):
    everyone = [dist.new_group([r for r in range(size) if r % 2 == side]) for side in range(2)]
    mine = everyone[rank % 2]
    tensor = torch.full((5,), float(rank))
    dist.all_reduce(tensor, group=mine)
    expect(tensor, torch.full((5,), float(sum(r for r in range(size) if r % 2 == rank % 2))))
    tensor = torch.full((5,), float(rank))
    dist.broadcast(tensor, src=rank % 2, group=mine)
    expect(tensor, torch.full((5,), float(rank % 2)))
    gloo = dist.new_group(list(range(size)), backend="gloo")   # beside Gloo
    dist.all_reduce(tensor, group=gloo)
    backend = dist.get_backend()
    if backend != "slip":
        raise AssertionError(f"the backend is {backend}")
    dist.barrier()


def started(rank, size, init, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(size))
    for attempt in range(2 if init.startswith("file") else 1):   # a second group after the first one was destroyed
        if init == "env://":
            dist.init_process_group("slip")
        else:
            dist.init_process_group("slip", init_method=f"{init}{attempt}" if init.startswith("file") else init,
                                    rank=rank, world_size=size)
        tensor = torch.ones(10)
        dist.all_reduce(tensor)
        expect(tensor, torch.full((10,), float(size)))
        dist.destroy_process_group()


def leaves_at_once(rank, size):
    """The root of a broadcast ends first; the others still get the data."""
    tensor = torch.full((100_000,), float(rank))
    dist.broadcast(tensor, 0)
    expect(tensor, torch.zeros(100_000))


def train(rank, size, hook):
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256), torch.nn.ReLU(),
                                torch.nn.Linear(256, 8), torch.nn.BatchNorm1d(8))
    # PowerSGD communicates in callbacks of futures. With several buckets they run beside the hook of the next bucket, so
    # ranks may make calls in different order: it gets one bucket. The other hooks get several.
    bucket_cap_mb = 25 if hook == "powersgd" else 0.1
    model = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=bucket_cap_mb)
    if hook == "fp16":
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    if hook == "powersgd":
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
        model.register_comm_hook(powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=0.5),
                                 powerSGD_hook.powerSGD_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(100 + rank)
    losses = []
    for _ in range(8):
        inputs = torch.randn(16, 64, generator=generator)
        loss = (model(inputs) - inputs[:, :8]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / size)
    return losses, [parameter.detach().sum().item() for parameter in model.parameters()]


def killed(rank, size, lost):
    tensor = torch.ones(1000)
    dist.all_reduce(tensor)
    if rank == lost:
        os.kill(os.getpid(), signal.SIGKILL)
    raises(f"rank {lost}", dist.all_reduce, tensor)
    raises(f"rank {lost}", dist.all_reduce, tensor)   # and at once


def killed_sender(rank, size):
    tensor = torch.ones(1000)
    if rank == 0:
        dist.recv(tensor, 1)
        raises("rank 1", dist.recv, tensor, 1)
    else:
        dist.send(tensor, 0)
        os.kill(os.getpid(), signal.SIGKILL)


def absent(rank, size):
    """Rank 1 does not join: an error at the deadline names it."""
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        store.wait(["done"])
        return
    raises("rank 1", dist.all_reduce, torch.ones(10))
    store.set("done", "1")


def sends_in_callback(rank, size):
    """Rank 1 does not receive, so the send of rank 0 fails. The callback of the failed send may send again."""
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        store.wait(["done"])
        return
    tensor = torch.ones(3)
    second = []
    future = dist.isend(tensor, 1).get_future().then(lambda _: second.append(dist.isend(tensor, 1)))
    future.wait()
    raises("message from rank 0 to rank 1", second[0].wait)
    store.set("done", "1")


def different_calls(rank, size):
    raises(["mismatch", "all_reduce"], dist.all_reduce, torch.ones(10 + rank))


# Suites ---------------------------------------------------------------------------------------------------------------


class Collectives(unittest.TestCase):
    def test_all_reduce(self):
        for size in (1, 2, 4):
            run_ranks(self, size, all_reduces)

    def test_reduce_and_reduce_scatter(self):
        for size in (2, 4):
            run_ranks(self, size, reductions, same)

    def test_data_movement(self):
        for size in (2, 4):
            run_ranks(self, size, movements, same)

    def test_all_to_all(self):
        for size in (2, 4):
            run_ranks(self, size, exchanges, same)


class Inputs(unittest.TestCase):
    def test_tensors_that_are_not_contiguous(self):
        run_ranks(self, 2, strided_all_reduces)
        for program in (reductions, movements, exchanges):
            run_ranks(self, 2, program, twisted)

    def test_refusals(self):
        run_ranks(self, 2, refusals)


class Works(unittest.TestCase):
    def test_many_at_once(self):
        for size in (2, 4):
            run_ranks(self, size, many_works)

    def test_futures(self):
        for size in (2, 4):
            run_ranks(self, size, futures)

    def test_wait_with_timeout(self):
        run_ranks(self, 2, wait_times_out)


class Messages(unittest.TestCase):
    def test_messages(self):
        for size in (2, 4):
            run_ranks(self, size, messages)

    def test_a_receive_without_its_send(self):
        run_ranks(self, 2, unmatched_receive)


class Groups(unittest.TestCase):
    def test_new_group(self):
        run_ranks(self, 4, groups)

    def test_ways_to_start(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        with tempfile.TemporaryDirectory() as folder:
            for init in ("env://", f"tcp://127.0.0.1:{port}", f"file://{folder}/store"):
                run_ranks(self, 2, started, init, port, init="")

    def test_a_rank_that_leaves_first(self):
        for _ in range(5):
            run_ranks(self, 4, leaves_at_once)


class Ddp(unittest.TestCase):
    def test_losses(self):
        for size in (2, 4):
            wanted = run_ranks(self, size, train, "", backend="gloo")[0]
            for got in run_ranks(self, size, train, ""):
                for ours, theirs in zip(got[0] + got[1], wanted[0] + wanted[1]):
                    self.assertAlmostEqual(ours, theirs, delta=1e-4 * (1 + abs(theirs)))

    def test_communication_hooks(self):
        for hook in ("fp16", "powersgd"):
            results = run_ranks(self, 2, train, hook)
            self.assertEqual(results[0][1], results[1][1])
            self.assertLess(results[0][0][-1], results[0][0][0])


class Failures(unittest.TestCase):
    def test_killed_rank(self):
        for size, lost in ((2, 1), (4, 2), (4, 0)):
            run_ranks(self, size, killed, lost, killed=[lost])

    def test_killed_sender(self):
        run_ranks(self, 2, killed_sender, killed=[1])

    def test_absent_rank(self):
        run_ranks(self, 2, absent, timeout_s=2)

    def test_a_send_in_the_callback_of_a_failed_send(self):
        run_ranks(self, 2, sends_in_callback, timeout_s=2)

    def test_different_calls(self):
        run_ranks(self, 2, different_calls)


if __name__ == "__main__":
    unittest.main()
