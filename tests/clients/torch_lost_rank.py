"""A PyTorch rank is killed inside a collective: the others must get an error that names it, within 5 s.

usage: python3 tests/clients/torch_lost_rank.py LIBNCCL [RANKS]

Starts the ranks itself with LIBNCCL preloaded, because a launcher would end the others with the killed one.
"""

import os
import signal
import subprocess
import sys
import time


def rank_main(rank, ranks):
    import torch
    import torch.distributed as dist
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", rank=rank, world_size=ranks)
    tensor = torch.ones(1000, device="cuda")
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    if rank == ranks - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    try:
        while time.monotonic() - begin < 20:
            dist.all_reduce(tensor)
            torch.cuda.synchronize()
        print(f"rank {rank}: no error after {time.monotonic() - begin:.1f} s", flush=True)
        os._exit(1)
    except Exception as error:   # pylint: disable=broad-except
        seconds = time.monotonic() - begin
        text = str(error).strip().replace("\n", " | ")
        named = f"rank {ranks - 1}" in text
        print(f"rank {rank}: error after {seconds:.2f} s: {text[:900]}", flush=True)
        os._exit(0 if seconds < 5 and named else 1)


def main():
    if len(sys.argv) > 1 and sys.argv[1] == "--rank":
        return rank_main(int(sys.argv[2]), int(sys.argv[3]))
    library, ranks = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 2
    env = dict(os.environ, LD_PRELOAD=library, MASTER_ADDR="127.0.0.1", MASTER_PORT="29519")
    children = [subprocess.Popen([sys.executable, __file__, "--rank", str(rank), str(ranks)], env=env)
                for rank in range(ranks)]
    status = [child.wait(timeout=120) for child in children]
    ok = all(code == 0 for code in status[:-1]) and status[-1] == -signal.SIGKILL
    print("lost rank:", "ok" if ok else f"FAILED {status}")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
