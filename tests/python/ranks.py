"""Ranks for tests: each rank is a forked process that joins a process group and runs one function."""

import datetime
import multiprocessing
import os
import tempfile
import time
import traceback
import warnings

DEADLINE_S = int(os.environ.get("DEADLINE_S", "180"))   # for all ranks of one program, on a busy machine


def _rank_main(connection, program, rank, size, options):
    # The ranks compute on the CPU. The PowerSGD hook of torch 2.11 synchronizes "the GPU of the tensor" whenever torch
    # finds a GPU, and raises for a tensor on the CPU.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")   # torch's, about functions that may be deprecated
    try:
        if options["init"]:
            dist.init_process_group(options["backend"], init_method=options["init"], rank=rank, world_size=size,
                                    timeout=datetime.timedelta(seconds=options["timeout_s"]))
        value = program(rank, size, *options["args"])
        if dist.is_initialized():
            dist.destroy_process_group()
        connection.send((True, value))
    except BaseException:   # pylint: disable=broad-except
        connection.send((False, traceback.format_exc()))
    connection.close()
    os._exit(0)   # no handlers of the parent process


def run_ranks(test, size, program, *args, backend="slip", init="file", timeout_s=60, killed=()):
    """Runs program(rank, size, *args) in `size` processes and returns their results.

    Fails the test if a rank raises. The ranks in `killed` must end without a result. init: "file", another
    init_method, or "" for programs that call init_process_group themselves."""
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        options = {"backend": backend, "init": f"file://{folder}/store" if init == "file" else init, "args": args,
                   "timeout_s": timeout_s}
        ranks = []
        for rank in range(size):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_rank_main, args=(theirs, program, rank, size, options))
            process.start()
            theirs.close()
            ranks.append((process, ours))
        deadline = time.monotonic() + DEADLINE_S
        results, faults = [], []
        for rank, (process, connection) in enumerate(ranks):
            value = None
            try:
                if not connection.poll(max(0, deadline - time.monotonic())):
                    faults.append(f"rank {rank} gave no result in {DEADLINE_S} s")
                else:
                    fine, value = connection.recv()
                    if not fine:
                        faults.append(f"rank {rank}:\n{value}")
                    elif rank in killed:
                        faults.append(f"rank {rank} was to be killed, and returned {value}")
            except EOFError:
                if rank not in killed:
                    faults.append(f"rank {rank} ended without a result")
            results.append(value)
        for process, _ in ranks:
            process.join(max(0, deadline - time.monotonic()) + 5)
            if process.is_alive():
                process.kill()
                process.join()
    if faults:
        test.fail("\n".join(faults))
    return results
