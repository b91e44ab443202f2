#!/usr/bin/env python3
"""torch_offload.py - slipstream.offload with models of transformers, on a GPU: outputs equal to those of resident weights.

Small random models of several architectures; their weights are streamed through a part of the memory that they need.
Prints PASS or FAIL for each case; exit status 1 if one failed.
"""
import gc
import os
import sys
import tempfile
import threading
import traceback
import warnings

import torch

import slipstream

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
from support import Gate  # noqa: E402  the helpers of the package's own tests

DEVICE = "cuda:0" if torch.cuda.is_available() else "cpu"
SMALL = {"vocab_size": 1000, "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
failed = 0


def case(function):
    global failed
    try:
        text = function()
        print(f"PASS {function.__name__}{': ' + text if text else ''}", flush=True)
    except Exception as error:   # noqa: BLE001  every case is reported
        failed += 1
        where = traceback.extract_tb(error.__traceback__)[-3:]
        print(f"FAIL {function.__name__}: {type(error).__name__}: {error} "
              f"[{' < '.join(f'{os.path.basename(f.filename)}:{f.lineno}' for f in reversed(where))}]", flush=True)


def make(kind, config, dtype=torch.bfloat16):
    torch.manual_seed(3)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        model = kind(config)
    finally:
        torch.set_default_dtype(before)
    return model.to(DEVICE).eval()


def tokens_of(model, ids, count=8):
    return model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, min_new_tokens=count, do_sample=False,
                          pad_token_id=0)


def check_language_model(kind, config, budget="40%", dtype=torch.bfloat16):
    """Logits and generated tokens, of resident and of streamed weights."""
    model = make(kind, config, dtype)
    ids = torch.randint(1, 900, (2, 13), device=DEVICE)
    with torch.no_grad():
        logits = model(ids).logits
    tokens = tokens_of(model, ids)
    slipstream.offload(model, budget, DEVICE)
    for _ in range(3):
        with torch.no_grad():
            assert torch.equal(model(ids).logits, logits), "other logits"
        assert torch.equal(tokens_of(model, ids), tokens), "other tokens"
    plan, report = model.slip.plan(), model.slip.report()
    assert plan.device_bytes <= plan.budget, "over the budget"
    proven, text = model.slip.verify()
    assert proven, text
    model.slip.restore()
    with torch.no_grad():
        assert torch.equal(model(ids).logits, logits), "other logits after restore()"
    return (f"{len(plan.streamed)} of {len(plan.streamed) + len(plan.resident)} weights streamed, "
            f"{report.planned_loads} loads, {report.on_demand_loads} on demand")


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM
    return check_language_model(LlamaForCausalLM, LlamaConfig(num_key_value_heads=2, **SMALL))


def llama_half():
    from transformers import LlamaConfig, LlamaForCausalLM
    return check_language_model(LlamaForCausalLM, LlamaConfig(num_key_value_heads=2, **SMALL), dtype=torch.float16)


def llama_f32_tied():
    from transformers import LlamaConfig, LlamaForCausalLM
    return check_language_model(LlamaForCausalLM, LlamaConfig(num_key_value_heads=2, tie_word_embeddings=True, **SMALL),
                                dtype=torch.float32)


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel
    return check_language_model(GPT2LMHeadModel, GPT2Config(vocab_size=1000, n_embd=256, n_layer=4, n_head=4))


def qwen2():
    from transformers import Qwen2Config, Qwen2ForCausalLM
    return check_language_model(Qwen2ForCausalLM, Qwen2Config(num_key_value_heads=2, **SMALL))


def mixtral():
    from transformers import MixtralConfig, MixtralForCausalLM
    return check_language_model(MixtralForCausalLM, MixtralConfig(num_key_value_heads=2, num_local_experts=4, **SMALL), "60%")


def t5():
    from transformers import T5Config, T5ForConditionalGeneration
    config = T5Config(vocab_size=1000, d_model=256, d_kv=64, d_ff=1024, num_layers=3, num_decoder_layers=3, num_heads=4,
                      decoder_start_token_id=0)
    model = make(T5ForConditionalGeneration, config)
    ids = torch.randint(1, 900, (2, 13), device=DEVICE)
    tokens = tokens_of(model, ids)
    slipstream.offload(model, "40%", DEVICE)
    for _ in range(3):
        assert torch.equal(tokens_of(model, ids), tokens), "other tokens"
    return f"{len(model.slip.plan().passes)} kinds of calls, {model.slip.report().on_demand_loads} loads on demand"


def vit():
    from transformers import ViTConfig, ViTForImageClassification
    model = make(ViTForImageClassification, ViTConfig(hidden_size=256, num_hidden_layers=4, num_attention_heads=4,
                                                      intermediate_size=1024, image_size=64), torch.float16)
    images = torch.randn(2, 3, 64, 64, device=DEVICE, dtype=torch.float16)
    with torch.no_grad():
        wanted = model(images).logits
    slipstream.offload(model, "40%", DEVICE)
    for _ in range(4):
        with torch.no_grad():
            assert torch.equal(model(images).logits, wanted), "other logits"


def autocast():
    from transformers import LlamaConfig, LlamaForCausalLM
    model = make(LlamaForCausalLM, LlamaConfig(num_key_value_heads=2, **SMALL), torch.float32)
    ids = torch.randint(1, 900, (2, 13), device=DEVICE)
    with torch.no_grad(), torch.autocast(DEVICE.split(":")[0], torch.bfloat16):
        wanted = model(ids).logits
        slipstream.offload(model, "40%", DEVICE)
        for _ in range(4):
            assert torch.equal(model(ids).logits, wanted), "other logits"


def side_stream():
    from transformers import LlamaConfig, LlamaForCausalLM
    model = make(LlamaForCausalLM, LlamaConfig(num_key_value_heads=2, **SMALL))
    ids = torch.randint(1, 900, (2, 13), device=DEVICE)
    with torch.no_grad():
        wanted = model(ids).logits
        slipstream.offload(model, "40%", DEVICE)
        stream = torch.cuda.Stream()
        for turn in range(6):
            torch.cuda.synchronize()
            with torch.cuda.stream(stream if turn % 2 else torch.cuda.current_stream()):
                got = model(ids).logits
            torch.cuda.synchronize()
            assert torch.equal(got, wanted), "other logits"


def access_on_another_stream():
    """A weight is read outside of a call, in a stream that is behind. The next call must not load other bytes to its place."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024, bias=False) for _ in range(8))).to(DEVICE).eval()
    wanted, x = model[5].weight.detach().clone(), torch.randn(4, 1024, device=DEVICE)
    slipstream.offload(model, "30%", DEVICE, stream_all=True)
    stream, device = torch.cuda.Stream(), slipstream.Device(DEVICE)
    with torch.no_grad():
        for _ in range(4):
            with Gate(device) as gate:   # it opens when the call has been issued
                with torch.cuda.stream(stream):
                    weight = model[5].weight
                    gate.hold(slipstream.Stream.adopt(stream, device))
                    copied = weight.clone()
                limit = threading.Timer(60, gate.open)   # should the call wait for the stream on the host
                limit.start()
                model(x)
                limit.cancel()
            torch.cuda.synchronize()
            assert torch.equal(copied, wanted), "bytes of another weight"


def outputs_that_are_weights():
    class Giver(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.randn(1024, 1024))

        def forward(self):
            return self.w, self.w[:100]

    class Taker(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.givers = torch.nn.ModuleList(Giver() for _ in range(4))
            self.tail = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(6)))

        def forward(self, x):
            found = [each for giver in self.givers for each in giver()]
            return [self.tail(x), *found]
    torch.manual_seed(3)
    model, x = Taker().to(DEVICE).eval(), torch.randn(4, 1024, device=DEVICE)
    with torch.no_grad():
        wanted = [each.clone() for each in model(x)]
        slipstream.offload(model, "40%", DEVICE)
        kept = [model(x) for _ in range(4)]
    for found in kept:
        assert all(torch.equal(one, other) for one, other in zip(found, wanted)), "other outputs"
    state = model.state_dict()
    assert all(torch.equal(state[f"givers.{i}.w"].to(DEVICE), wanted[1 + 2 * i]) for i in range(4)), "other weights in state_dict()"


def from_pretrained():
    from transformers import LlamaConfig, LlamaForCausalLM
    model = make(LlamaForCausalLM, LlamaConfig(num_key_value_heads=2, **SMALL))
    ids = torch.randint(1, 900, (2, 13), device=DEVICE)
    tokens = tokens_of(model, ids)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder, max_shard_size="4MB")
        for options in ({}, {"host_memory": "2MB"}, {"stream_all": True}):
            made = slipstream.from_pretrained("LlamaForCausalLM", folder, "40%", DEVICE, **options)
            for _ in range(3):
                assert torch.equal(tokens_of(made, ids), tokens), f"other tokens with {options}"
            made.slip.restore()
        made = slipstream.from_pretrained(None, folder, "40%", DEVICE)
        assert torch.equal(tokens_of(made, ids), tokens), "other tokens"
        for name, value in made.state_dict().items():
            assert torch.equal(value.cpu(), model.state_dict()[name].cpu()), name


def from_pretrained_converted():
    """The files have the experts one by one, the model has them in one parameter."""
    from transformers import MixtralConfig, MixtralForCausalLM
    model = make(MixtralForCausalLM, MixtralConfig(num_key_value_heads=2, num_local_experts=4, **SMALL))
    ids = torch.randint(1, 900, (2, 13), device=DEVICE)
    tokens = tokens_of(model, ids)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.save_pretrained(folder)
        made = slipstream.from_pretrained(None, folder, "60%", DEVICE)
        for _ in range(3):
            assert torch.equal(tokens_of(made, ids), tokens), "other tokens"
        tensors = slipstream._core.WeightFiles(folder).tensors()
        converted = [name for name, _ in model.named_parameters() if name not in tensors]   # by newer transformers
        warned = any("transformers converts them" in str(each.message) for each in caught)
        assert warned == bool(converted), f"warned: {warned}, but {len(converted)} weights are not tensors of the files"
        return f"{len(converted)} weights converted"


def timeline():
    from transformers import LlamaConfig, LlamaForCausalLM
    model = make(LlamaForCausalLM, LlamaConfig(num_key_value_heads=2, **SMALL))
    ids = torch.randint(1, 900, (2, 13), device=DEVICE)
    slipstream.offload(model, "40%", DEVICE)
    tokens_of(model, ids)
    tokens_of(model, ids)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "run.html")
        model.slip.timeline(path, lambda: tokens_of(model, ids))
        with open(path, encoding="utf-8") as file:
            assert "down_proj" in file.read(), "no load on the page"


def full_gpu():
    """Other tensors leave little memory: a slowdown, the default budget and restore() need that of the weights itself."""
    def layers():
        torch.manual_seed(3)
        return torch.nn.Sequential(*(torch.nn.Linear(4096, 4096, bias=False) for _ in range(16))).to(DEVICE).eval()
    x = torch.randn(8, 4096, device=DEVICE)
    for options in ({"slowdown": 0.02}, {}, {"budget": "90%"}):
        model = layers()   # 1 GiB
        with torch.no_grad():
            wanted = model(x)
        gc.collect()
        torch.cuda.empty_cache()
        ballast = torch.empty(torch.cuda.mem_get_info()[0] - (384 << 20), dtype=torch.uint8, device=DEVICE)
        slipstream.offload(model, device=DEVICE, **options)
        assert options or model.slip.plan().budget > 768 << 20, f"a budget of {model.slip.plan().budget} bytes"
        for _ in range(4):
            with torch.no_grad():
                assert torch.equal(model(x), wanted), f"other outputs with {options}"
        model.slip.restore()
        with torch.no_grad():
            assert torch.equal(model(x), wanted), f"other outputs after restore() with {options}"
        del model, ballast


def writable_bytes():
    """Of the writable mappings of this process. Pinned memory is one; VmLck and VmRSS need not count it."""
    total = 0
    with open("/proc/self/maps", encoding="utf-8") as file:
        for line in file:
            place, rights = line.split()[:2]
            if "w" in rights:
                begin, end = (int(each, 16) for each in place.split("-"))
                total += end - begin
    return total


def memory_comes_back():
    """After restore() the GPU and pinned memory have what they had."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(*(torch.nn.Linear(4096, 4096, bias=False) for _ in range(16))).to(DEVICE).eval()   # 1 GiB
    x, found = torch.randn(8, 4096, device=DEVICE), []
    for _ in range(4):
        slipstream.offload(model, "40%", DEVICE)
        with torch.no_grad():
            model(x), model(x)
        torch.cuda.synchronize()
        pinned, offloaded = model.slip.plan().pinned_bytes, writable_bytes()
        model.slip.restore()
        gc.collect()
        torch.cuda.empty_cache()
        restored = writable_bytes()
        assert pinned >= 1 << 30 and offloaded - restored > pinned // 2, \
            f"{pinned} bytes were pinned, but restore() unmapped {offloaded - restored}"
        found.append((torch.cuda.memory_allocated(), len(os.listdir("/proc/self/fd")), restored))
    assert found[1][:2] == found[-1][:2], found
    assert found[-1][2] - found[1][2] < 1 << 29, found   # less than half of what one call pins


def main():
    for function in (outputs_that_are_weights, llama, llama_half, llama_f32_tied, gpt2, qwen2, mixtral, t5, vit, autocast,
                     from_pretrained, from_pretrained_converted):
        case(function)
    if DEVICE != "cpu":
        case(side_stream)
        case(access_on_another_stream)
        case(timeline)
        case(full_gpu)
        case(memory_comes_back)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
