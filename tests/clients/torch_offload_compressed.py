#!/usr/bin/env python3
"""slipstream.offload(compress=True) on a GPU: a Llama of transformers with random bfloat16 weights.

    PYTHONPATH=build/cuda/python python3 tests/clients/torch_offload_compressed.py [LAYERS]

Runs a call of one token with the weights streamed as they are and compressed, with nothing resident and with memory for
half of the weights. It prints the times and compares every output with that of the model on the GPU, bit by bit.
"""

import sys
import time

import slipstream
import torch
import transformers


def timed(model, ids, calls=6):
    outputs = []
    with torch.inference_mode():
        for _ in range(4):  # the streamer learns the order
            outputs.append(model(ids, use_cache=False).logits.clone())
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(calls):
            outputs.append(model(ids, use_cache=False).logits.clone())
        torch.cuda.synchronize()
    return (time.perf_counter() - begin) / calls, outputs


def main():
    layers = int(sys.argv[1]) if len(sys.argv) > 1 else 16
    config = transformers.LlamaConfig(hidden_size=4096, intermediate_size=11008, num_hidden_layers=layers,
                                      num_attention_heads=32, num_key_value_heads=32, vocab_size=32000)
    torch.manual_seed(int(time.time()))
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        model = transformers.LlamaForCausalLM(config).eval()
    ids = torch.randint(0, 32000, (1, 1), device="cuda")
    resident, wanted = timed(model, ids)
    total = sum(each.numel() * each.element_size() for each in model.parameters())
    print(f"{total / 1e9:.2f} GB of weights; resident {resident * 1e3:.1f} ms a call")
    wrong = False
    for name, options in (("nothing resident", {"budget": "2GiB", "stream_all": True}), ("half", {"budget": "50%"})):
        times = {}
        for compress in (False, True):
            begin = time.perf_counter()
            slipstream.offload(model, device="cuda:0", compress=compress, **options)
            made = time.perf_counter() - begin
            times[compress], outputs = timed(model, ids)
            equal = all(torch.equal(each, wanted[0]) for each in outputs)
            wrong |= not equal
            print(f"{name}, {'compressed' if compress else 'as they are'}: {times[compress] * 1e3:.1f} ms a call, "
                  f"offload() took {made:.1f} s, outputs {'equal' if equal else 'WRONG'}")
            print("  " + str(model.slip.plan()).replace("\n", "\n  "))
            model.slip.restore()
        print(f"{name}: {times[False] / times[True]:.2f}x faster compressed")
    after = timed(model, ids, 1)[1]
    if not torch.equal(after[0], wanted[0]):
        wrong = True
        print("the restored model differs")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
