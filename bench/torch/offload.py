#!/usr/bin/env python3
"""offload.py OUT.json [--quick] - slipstream.offload on a GPU: a Llama of transformers with random weights, bfloat16.

In one run: all weights on the GPU (resident), no weight on the GPU (streamed), memory for half of the weights (half),
and accelerate with the same memory. The link rate is that of a plain copy from pinned memory, in the same run.

    BAR torch name ours other ratio target ok|missed

`link` in a row is the time that the streamed bytes need at the link rate. Outputs and tokens must be equal to the bit.
Exit status 1: a bar is missed.
"""
import argparse
import copy
import json
import statistics
import sys
import time

import torch

import slipstream

PROMPT, TOKENS, BATCH, LONG = 64, 24, 16, 1024
results = {"torch": torch.__version__}
rows, missed = [], 0


def bar(name, ours, other, ratio, target, ok):
    global missed
    missed += not ok
    row = f"BAR torch offload_{name} {ours} {other} {ratio} {target} {'ok' if ok else 'missed'}"
    print(row, flush=True)
    rows.append({"row": row, "name": name, "ok": bool(ok)})


def at_most(name, ours, other, limit):
    ratio = ours / other
    bar(name, f"{ours * 1e3:.4g}ms", f"{other * 1e3:.4g}ms", f"{ratio:.3f}x", f"<={limit}x", ratio <= limit)


def note(text):
    print("   ", text, flush=True)


def make_model(layers):
    from transformers import LlamaConfig, LlamaForCausalLM
    config = LlamaConfig(hidden_size=4096, intermediate_size=11008, num_hidden_layers=layers, num_attention_heads=32,
                         num_key_value_heads=8, vocab_size=32000, max_position_embeddings=4096, tie_word_embeddings=False)
    torch.manual_seed(1)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("cuda"):
            model = LlamaForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(before)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model


def link_rate():
    """Bytes a second of a plain copy from pinned memory."""
    host = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True)
    there = torch.empty_like(host, device="cuda")
    samples = []
    for _ in range(6):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        there.copy_(host, non_blocking=True)
        end.record()
        end.synchronize()
        samples.append(begin.elapsed_time(end))
    return host.numel() / (statistics.median(samples[1:]) / 1e3)


def timed(run, rounds, warm=3, calls=1):
    """Median seconds of run(), until its output is there. Loads for the next call may still run then; they count in it, as
    calls follow each other."""
    for _ in range(warm):
        run()
    torch.cuda.current_stream().synchronize()
    samples = []
    for _ in range(rounds):
        begin = time.perf_counter()
        for _ in range(calls):
            run()
        torch.cuda.current_stream().synchronize()
        samples.append((time.perf_counter() - begin) / calls)
    return statistics.median(samples)


class Cases:
    """The same calls for each way to run the model. Calls of `plain`, with all weights on the GPU, alternate with them."""

    def __init__(self, quick):
        self.quick = quick
        torch.manual_seed(2)
        self.ids = torch.randint(0, 32000, (BATCH, LONG), device="cuda")

    def prefill(self, model):
        with torch.no_grad():
            return model(self.ids[:1, :512], use_cache=False, logits_to_keep=1).logits

    def batch(self, model):
        with torch.no_grad():
            return model(self.ids, use_cache=False, logits_to_keep=1).logits

    def generate(self, model, tokens=TOKENS):
        ids = self.ids[:1, :PROMPT]
        return model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, min_new_tokens=tokens,
                              do_sample=False)

    def token_time(self, model, rounds, tokens=TOKENS):
        """Seconds a token, without the prompt."""
        self.generate(model, 3)
        samples = []
        for _ in range(rounds):
            times = []
            for count in (1, tokens + 1):
                torch.cuda.current_stream().synchronize()
                begin = time.perf_counter()
                self.generate(model, count)
                torch.cuda.current_stream().synchronize()
                times.append(time.perf_counter() - begin)
            samples.append((times[1] - times[0]) / tokens)
        return statistics.median(samples)

    def run(self, what, model, plain=None):
        """Times of all calls, their outputs and, of an offloaded model, predictions."""
        found = {"tokens": self.generate(model).cpu(), "logits": self.prefill(model).cpu()}
        rounds = 5 if self.quick else 9
        slip = model.__dict__.get("slip")
        calls = {"generate": lambda: self.token_time(model, 1 if self.quick else 3),
                 "prefill": lambda: timed(lambda: self.prefill(model), rounds)}
        for name, measure in calls.items():
            found[name] = measure()
            if slip:
                found[name + "_predicted"], found[name + "_bytes"] = slip.predict().seconds, slip.predict().loaded_bytes
        found["batch_logits"] = self.batch(model).cpu()
        own, other = [], []
        for _ in range(rounds + 3):
            own.append(timed(lambda: self.batch(model), 1, warm=0, calls=3))
            if plain is not None:
                torch.cuda.synchronize()   # no load of ours beside the peer
                other.append(timed(lambda: self.batch(plain), 1, warm=0, calls=3))
        found["batch"] = statistics.median(own[3:])
        if slip:
            found["batch_predicted"] = slip.predict().seconds
        if plain is not None:
            found["batch_resident"] = statistics.median(other[3:])
        results[what] = {key: value for key, value in found.items() if isinstance(value, (int, float))}
        note(f"{what}: " + ", ".join(f"{key} {value * 1e3:.4g} ms" if "bytes" not in key else f"{key} {value / 1e9:.4g} GB"
                                     for key, value in results[what].items()))
        return found


def compare(name, found, resident):
    same = [torch.equal(found[key], resident[key]) for key in ("tokens", "logits", "batch_logits")]
    bar(f"{name}_equal", f"{sum(same)}of{len(same)}", "resident", "-", "equal", all(same))
    for key in ("generate", "prefill", "batch"):
        error = abs(found[key + "_predicted"] / found[key] - 1)
        bar(f"{name}_{key}_predicted", f"{found[key + '_predicted'] * 1e3:.4g}ms", f"{found[key] * 1e3:.4g}ms",
            f"{error * 100:.1f}%", "<=5%", error <= 0.05)


class Memory:
    """GPU memory, as torch and the driver report it, above what the process has at the construction of this object."""

    def __init__(self):
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        self.free, self.start = torch.cuda.mem_get_info()[0], torch.cuda.memory_allocated()

    def begin(self):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()

    def peak(self):
        torch.cuda.synchronize()
        return {"torch": torch.cuda.max_memory_allocated() - self.start, "driver": self.free - torch.cuda.mem_get_info()[0]}


def offloaded(cases, name, plain, activations, **options):
    """Runs a copy of the model, offloaded."""
    memory = Memory()
    model = copy.deepcopy(plain)
    begin = time.perf_counter()
    slipstream.offload(model, device="cuda:0", **options)
    took = time.perf_counter() - begin
    memory.begin()   # until here the GPU held all weights of the copy, too
    found = cases.run(name, model, plain)
    peak = memory.peak()
    plan = model.slip.plan()
    note(str(plan).strip().replace("\n", "\n    "))
    note(str(model.slip.report()).strip().replace("\n", "\n    "))
    largest = "lm_head.weight" in plan.resident
    note(f"offload() took {took:.2f} s; {'lm_head stays' if largest else 'lm_head is streamed'}")
    for kind, value in peak.items():
        allowed = plan.budget + activations[kind]
        bar(f"{name}_memory_{kind}", f"{value / 1e9:.4g}GB", f"{allowed / 1e9:.4g}GB", f"{value / allowed:.3f}x", "<=1x",
            value <= allowed)
    model.slip.restore()
    return found, plan, model


def accelerated(cases, model, budget):
    from accelerate import dispatch_model, infer_auto_device_map
    model = model.to("cpu")
    torch.cuda.empty_cache()
    places = infer_auto_device_map(model, max_memory={0: budget, "cpu": "200GiB"}, no_split_module_classes=["LlamaDecoderLayer"])
    dispatch_model(model, places, offload_buffers=True)
    seconds = cases.token_time(model, 1, 3)
    note(f"accelerate: {seconds * 1e3:.4g} ms a token")
    return seconds


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--layers", type=int, default=16)
    options = parser.parse_args()
    rate = link_rate()
    torch.cuda.empty_cache()
    plain = make_model(options.layers)
    weights = sum(p.numel() * p.element_size() for p in plain.parameters())
    results.update(link_rate=rate, weight_bytes=weights)
    note(f"link {rate / 1e9:.4g} GB/s, weights {weights / 1e9:.4g} GB, torch {torch.__version__}")
    cases = Cases(options.quick)
    cases.prefill(plain)   # the process loads kernels and takes workspaces; not part of any budget
    warm = slipstream.offload(torch.nn.Linear(1024, 1024, device="cuda").eval(), "200%", stream_all=True)
    warm(torch.ones(1, 1024, device="cuda"))
    warm.slip.restore()
    del warm
    memory = Memory()
    memory.begin()
    resident = cases.run("resident", plain)
    activations = memory.peak()
    note(", ".join(f"activations, {kind}: {value / 1e9:.3g} GB" for kind, value in activations.items()))

    streamed, _, _ = offloaded(cases, "streamed", plain, activations, budget="1GiB", stream_all=True)
    compare("streamed", streamed, resident)
    at_most("streamed_generate_link", streamed["generate"], streamed["generate_bytes"] / rate, 1.03)
    at_most("streamed_1x512_link", streamed["prefill"], streamed["prefill_bytes"] / rate, 1.03)
    at_most("streamed_16x1024_resident", streamed["batch"], streamed["batch_resident"], 1.03)

    half, plan, model = offloaded(cases, "half", plain, activations, budget="50%")
    compare("half", half, resident)
    at_most("half_generate_link", half["generate"], half["generate_bytes"] / rate, 1.05)
    at_most("half_16x1024_resident", half["batch"], half["batch_resident"], 1.03)
    try:
        peer = accelerated(cases, model, plan.budget)
        faster = peer / half["generate"]
        bar("half_generate_accelerate", f"{half['generate'] * 1e3:.4g}ms", f"{peer * 1e3:.4g}ms", f"{faster:.2f}x", ">=8x", faster >= 8)
    except ImportError as error:
        print(f"BAR torch offload_half_generate_accelerate - - - - skipped ({error})")
    with open(options.out, "w", encoding="utf-8") as file:
        json.dump({"results": results, "rows": rows}, file, indent=1)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
