#!/usr/bin/env python3
"""The peers in Python: a stack of decoder-shaped blocks whose weights stay in host memory.

usage: torch_peers.py OUT.json [--blocks 32] [--rounds 3]

Writes seconds a step by peer and tokens: `resident` (all weights on the GPU), `two_slots` (two blocks of weights on the
GPU, filled by hand on a copy stream with events), `accelerate` (its cpu_offload, as its documentation shows). The
arithmetic is that of `slip model stack`: rms_norm, q, k, v, their sum, o, add, rms_norm, gate, up, silu, multiply,
down, add; bfloat16, hidden 4096, intermediate 11008.
"""

import argparse
import json
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

HIDDEN, INTERMEDIATE = 4096, 11008


class Block(nn.Module):
    def __init__(self, device):
        super().__init__()
        make = lambda rows, columns: nn.utils.skip_init(nn.Linear, columns, rows, bias=False, dtype=torch.bfloat16,
                                                        device=device)
        self.q, self.k, self.v, self.o = (make(HIDDEN, HIDDEN) for _ in range(4))
        self.gate, self.up = make(INTERMEDIATE, HIDDEN), make(INTERMEDIATE, HIDDEN)
        self.down = make(HIDDEN, INTERMEDIATE)
        self.norm1 = nn.RMSNorm(HIDDEN, dtype=torch.bfloat16, device=device)
        self.norm2 = nn.RMSNorm(HIDDEN, dtype=torch.bfloat16, device=device)

    def forward(self, x):
        h = self.norm1(x)
        x = x + self.o(self.q(h) + self.k(h) + self.v(h))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def step_times(run, rounds, steps):
    run()
    torch.cuda.synchronize()
    samples = []
    for _ in range(rounds):
        begin = time.perf_counter()
        for _ in range(steps):
            run()
        torch.cuda.synchronize()
        samples.append((time.perf_counter() - begin) / steps)
    return samples


def pinned_weights(blocks):
    """One contiguous pinned block per layer."""
    with torch.no_grad():
        layout = [(name, p.shape, p.numel()) for name, p in Block("meta").named_parameters()]
        total = sum(count for _, _, count in layout)
        host = [torch.empty(total, dtype=torch.bfloat16, pin_memory=True) for _ in range(blocks)]
        noise = torch.randn(total, dtype=torch.bfloat16) * 0.01
        for one in host:
            one.copy_(noise)
    return layout, host


def views(layout, flat):
    result, at = {}, 0
    for name, shape, count in layout:
        result[name] = flat[at:at + count].view(shape)
        at += count
    return result


def two_slots(layout, host, tokens, rounds, steps):
    slots = [torch.empty_like(host[0], device="cuda") for _ in range(2)]
    block = Block("meta")
    weights = [views(layout, slot) for slot in slots]
    copies, compute = torch.cuda.Stream(), torch.cuda.current_stream()
    loaded = [torch.cuda.Event() for _ in range(2)]
    used = [torch.cuda.Event() for _ in range(2)]
    x = torch.randn(tokens, HIDDEN, dtype=torch.bfloat16, device="cuda")

    def run():
        y = x
        for i, flat in enumerate(host):
            k = i % 2
            with torch.cuda.stream(copies):
                copies.wait_event(used[k])
                slots[k].copy_(flat, non_blocking=True)
                loaded[k].record(copies)
            compute.wait_event(loaded[k])
            y = torch.func.functional_call(block, weights[k], (y,))
            used[k].record(compute)
        return y

    return step_times(run, rounds, steps)


def resident(layout, host, tokens, rounds, steps):
    block = Block("meta")
    weights = [views(layout, flat.to("cuda")) for flat in host]
    x = torch.randn(tokens, HIDDEN, dtype=torch.bfloat16, device="cuda")

    def run():
        y = x
        for one in weights:
            y = torch.func.functional_call(block, one, (y,))
        return y

    return step_times(run, rounds, steps)


def offloaded(blocks):
    from accelerate import cpu_offload
    model = nn.Sequential(*[Block("cpu").requires_grad_(False) for _ in range(blocks)])
    first = list(model[0].parameters())
    for weight in first:
        weight.normal_(0, 0.01)
    for block in model:  # memory that nobody wrote would be the system's page of zeros, and quicker to copy
        for weight, source in zip(block.parameters(), first):
            weight.copy_(source)
    cpu_offload(model, execution_device=torch.device("cuda:0"))
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--blocks", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    torch.manual_seed(1)
    result = {"torch": torch.__version__, "resident": {}, "two_slots": {}, "accelerate": {}}

    def keep(peer, tokens, samples):
        result[peer][str(tokens)] = samples
        print(peer, tokens, samples, file=sys.stderr, flush=True)
        with open(asked.out, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)

    with torch.no_grad():
        layout, host = pinned_weights(asked.blocks)
        for tokens, steps in ((1, 3), (512, 3), (16384, 2), (65536, 1)):
            keep("two_slots", tokens, two_slots(layout, host, tokens, asked.rounds, steps))
            torch.cuda.empty_cache()
            keep("resident", tokens, resident(layout, host, tokens, asked.rounds, steps))
            torch.cuda.empty_cache()
        del host
        try:
            model = offloaded(asked.blocks)
        except ImportError as error:
            print(f"no accelerate: {error}", file=sys.stderr)
            return
        for tokens in (1, 512):
            x = torch.randn(tokens, HIDDEN, dtype=torch.bfloat16, device="cuda")
            keep("accelerate", tokens, step_times(lambda: model(x), 2, 1))


if __name__ == "__main__" : main()
