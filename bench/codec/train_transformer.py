#!/usr/bin/env python3
"""Trains a small transformer on text and writes its weights as safetensors, for `slip compress`.

    python3 bench/codec/train_transformer.py FOLDER [SECONDS]

The text is the source code of Python's standard library, which every machine with Python has; the model predicts its
bytes. It needs PyTorch, a GPU and the package safetensors. Weights are trained as float32 and written as bfloat16.
"""

import pathlib
import sys
import sysconfig
import time

import torch
from safetensors.torch import save_file
from torch import nn

WIDTH, LAYERS, HEADS, LENGTH, BATCH = 512, 8, 8, 256, 64


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(256, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.out = nn.Linear(WIDTH, 256)

    def forward(self, ids, mask):
        places = torch.arange(ids.shape[1], device=ids.device)
        return self.out(self.layers(self.tokens(ids) + self.places(places), mask=mask, is_causal=True))


def main():
    folder, seconds = pathlib.Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 60
    files = sorted(pathlib.Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    text = torch.frombuffer(bytearray(b"".join(each.read_bytes() for each in files)), dtype=torch.uint8).cuda()
    torch.manual_seed(1)
    model = Model().cuda()
    best = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1)
    mask = nn.Transformer.generate_square_subsequent_mask(LENGTH, device="cuda")
    begin, steps, loss = time.time(), 0, None
    while time.time() - begin < seconds:
        at = torch.randint(len(text) - LENGTH - 1, (BATCH, 1), device="cuda") + torch.arange(LENGTH + 1, device="cuda")
        ids = text[at].long()
        with torch.autocast("cuda", torch.bfloat16):
            loss = nn.functional.cross_entropy(model(ids[:, :-1], mask).flatten(0, 1).float(), ids[:, 1:].flatten())
        best.zero_grad(set_to_none=True)
        loss.backward()
        best.step()
        steps += 1
        if steps % 500 == 0:
            print(f"step {steps}: loss {loss.item():.3f}", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: value.detach().to(torch.bfloat16).cpu().contiguous() for name, value in model.state_dict().items()}
    save_file(weights, folder / "model.safetensors")
    print(f"{sum(each.numel() for each in weights.values())} weights after {steps} steps, loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
