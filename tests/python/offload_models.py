"""Models and helpers of the tests of slipstream.offload."""

import contextlib
import json
import os
import struct
import sys
import unittest

import slipstream as slip
from support import error_of

try:
    import torch
except ImportError as missing:
    print(f"skipped: PyTorch cannot be imported ({missing})")
    sys.exit(0)

nn, F = torch.nn, torch.nn.functional
torch.set_num_threads(1)   # on a busy machine the threads of small operations would wait for each other
TYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float64: "F64", torch.int64: "I64",
         torch.int8: "I8", torch.float16: "F16"}


class Block(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.up, self.down = nn.Linear(size, 4 * size), nn.Linear(4 * size, size, bias=False)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Model(nn.Module):
    """A stack of blocks. `order`: which of them a call uses."""

    def __init__(self, size=32, blocks=5, words=64, tied=True):
        super().__init__()
        self.words = nn.Embedding(words, size)
        self.blocks = nn.ModuleList(Block(size) for _ in range(blocks))
        self.head = nn.Linear(size, words, bias=False)
        if tied:
            self.head.weight = self.words.weight
        self.register_buffer("scale", torch.tensor(1.5))
        self.order = list(range(blocks))

    def forward(self, ids, fail=False):
        x = self.words(ids) * self.scale
        for number in self.order:
            x = self.blocks[number](x)
            if fail:
                raise ArithmeticError("in forward")
        return self.head(x)


def make(kind=Model, **options):
    torch.manual_seed(1)
    return kind(**options).eval()


def multiplies(kind):
    """Whether this PyTorch multiplies matrices of this type on this machine."""
    try:
        F.linear(torch.ones(12, 32, dtype=kind), torch.ones(128, 32, dtype=kind), torch.ones(128, dtype=kind))
        return True
    except RuntimeError:
        return False


LOWER = [kind for kind in (torch.bfloat16, torch.float16) if multiplies(kind)]
IDS = torch.arange(12).reshape(2, 6)


def run(model, *inputs):
    with torch.no_grad():
        return model(*(inputs or (IDS,)))


def write_tensors(path, tensors):
    """A safetensors file."""
    header, data = {}, b""
    for name, tensor in tensors.items():
        raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        header[name] = {"dtype": TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


class Gapped(nn.Module):
    """Weights whose elements do not fill their memory: a copy of them is offloaded, restore() allocates."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)
        for layer in (self.first, self.second):
            layer.weight = nn.Parameter(torch.randn(16, 32)[:, ::2])
        self.register_buffer("scale", torch.tensor(1.5))

    def forward(self, x):
        return self.last(self.second(self.first(x))) * self.scale


def gapped():
    return make(Gapped)


@contextlib.contextmanager
def interrupted(number, inside):
    """Raises KeyboardInterrupt before line `number`, counted from the call of the function `inside`, of the modules of
    offload. Yields the list of the lines that ran."""
    lines, begun = [], []

    def trace(frame, event, _):
        if not os.path.basename(frame.f_code.co_filename).startswith("_offload"):
            return None
        if frame.f_code.co_name == inside:
            begun.append(True)
        if event == "line" and begun and not frame.f_code.co_filename.endswith("_lock.py"):   # a lock needs some lines
            lines.append((frame.f_code.co_name, frame.f_lineno))
            if len(lines) == number:
                raise KeyboardInterrupt
        return trace
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield lines
    finally:
        sys.settrace(before)


def steps_of(call, inside):
    """How many lines `interrupted` counts in the call."""
    with interrupted(0, inside) as lines:
        call()
    return len(lines)


def all_of(module):
    """Everything by which a model could differ from before."""
    return {path: (each.__dict__.keys() - {"training"}, type(each._parameters), type(each._modules), each.forward.__func__)
            for path, each in module.named_modules()}


class Case(unittest.TestCase):
    def check(self, model, *inputs, budget="50%", calls=5, **options):
        """The outputs of some calls with streamed weights are those of the model itself. Returns the offloaded model."""
        wanted = run(model, *inputs)
        slip.offload(model, budget, "cpu", **options)
        self.addCleanup(model.slip.restore)
        for _ in range(calls):
            self.assertTrue(torch.equal(run(model, *inputs), wanted))
        return model

    def refused(self, part, call, kind=slip.Error):
        self.assertIn(part, str(error_of(call, kind)))
