"""The weights of a PyTorch model as groups for a WeightStreamer. A group knows where its bytes are on the host, and the
tensor that its parameters point to while the bytes are not on the device.

A group is one parameter, or several parameters that share their memory (tied weights). Parameters that are smaller than
a threshold stay on the device, like buffers: each load has a fixed cost, and they take little memory.
"""

from __future__ import annotations

import math
import re
import sys
import time
import warnings
from typing import Any, Callable, Iterable, Iterator, Optional

import torch

from . import _core
from ._errors import InvalidValue, OutOfMemory

ALIGNMENT = 256  # groups begin at multiples of this many bytes in device memory, as in the library
BLOCK = 1 << 30  # bytes of one allocation of pinned memory
THRESHOLDS = (1 << 20, 1 << 18, 1 << 16, 1 << 14, 1 << 12, 1 << 10, 1)
FILE_TYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32", "I16": "int16",
    "I8": "int8", "U8": "uint8", "BOOL": "bool", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
}
FILE_NAMES = {getattr(torch, name): kind for kind, name in FILE_TYPES.items() if hasattr(torch, name)}
UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30,
         "tib": 1 << 40}


def aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def text_of(size: float) -> str:
    """A number of bytes for readers, such as "6.2 GB"."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{int(size)} bytes"


def bytes_of(value: Any, what: str, whole: int = 0) -> int:
    """A size: a number of bytes, a text such as "6GiB" or "500 MB", or a share such as "50%" of `whole`."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise TypeError(f"{what} is a number of bytes or a text such as '6GiB', not {type(value).__name__}")
    if isinstance(value, str):
        match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([a-z%]*)\s*", value.lower())
        if match and match[2] == "%":
            return int(float(match[1]) / 100 * whole)
        if not match or match[2] not in UNITS:
            raise InvalidValue(f"{what} is '{value}'; write for example '6GiB', '500 MB' or '50%' (of the weights)")
        value = float(match[1]) * UNITS[match[2]]
    if not value >= 0 or math.isinf(value):
        raise InvalidValue(f"{what} is {value}; it must be a number of bytes")
    return int(value)


def keeps_its_weights(module: torch.nn.Module) -> bool:
    """Whether the weights of a module must stay on the device. nn.LSTM and nn.GRU keep references to their parameters, so
    their accesses do not go through `_parameters`. An embedding with max_norm writes its weight in forward."""
    return isinstance(module, torch.nn.RNNBase) or (
        isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and module.max_norm is not None)


class Group:
    """A streamed weight, with all parameters that share its memory."""

    __slots__ = ("name", "index", "places", "params", "shape", "stride", "dtype", "nbytes", "origin", "original", "host",
                 "tensor", "idle_view", "open", "views", "requires_grad", "rows", "rows_shown", "has_rows", "stream",
                 "versions", "packed")

    def __init__(self, name: str, param: torch.nn.Parameter) -> None:
        self.name = name
        self.index = -1                                  # in the streamer
        self.places: list[tuple[torch.nn.Module, str]] = []  # (module, name in its _parameters)
        self.params: list[torch.nn.Parameter] = []
        self.shape, self.dtype = param.shape, param.dtype
        self.stride = param.stride() if is_dense(param) else contiguous_stride(param.shape)
        self.nbytes = param.numel() * param.element_size()
        self.origin = param.device
        self.original: Optional[torch.Tensor] = None     # the parameter's own memory, while it is kept
        self.host: Optional[torch.Tensor] = None         # the bytes on the host, as a tensor; None: only in a file
        self.packed: Optional[_core.CompressedWeights] = None  # the bytes on the host, compressed
        self.tensor: Optional[str] = None                # the name in the files
        self.idle_view: Optional[torch.Tensor] = None    # the parameters point to it while `open` is False
        self.open = False                                # the parameters point to the bytes of the weight
        self.views: dict[int, torch.Tensor] = {}         # of the streamer's memory, by address
        self.requires_grad: list[bool] = []              # of `params`, before offload()
        self.rows: Optional[torch.Tensor] = None         # the bytes on the host, as a tensor that the device can read
        self.has_rows = False                            # an embedding may read single rows instead of the whole weight
        self.rows_shown = False                          # the parameters point to rows in host memory
        self.stream: Optional[_core.Stream] = None       # the stream for which the weight was acquired
        self.versions: Optional[list[int]] = None        # versions_now() at an access outside of calls

    def point_to(self, data: torch.Tensor) -> None:
        for param in self.params:
            param.data = data

    def versions_now(self) -> list[int]:
        """The version of each parameter. torch increments it at each write, except for a write by `param.data`."""
        return [param._version for param in self.params if not param.is_inference()]

    def view_of(self, memory: torch.Tensor) -> torch.Tensor:
        """A tensor of the parameter's shape and type on `memory`, a tensor of bytes."""
        return memory[:self.nbytes].view(self.dtype).as_strided(self.shape, self.stride)


def contiguous_stride(shape: Any) -> tuple[int, ...]:
    stride, step = [], 1
    for size in reversed(shape):
        stride.append(step)
        step *= max(size, 1)
    return tuple(reversed(stride))


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill their memory without gaps, in any order of the dimensions."""
    step = 1
    for size, stride in sorted(((n, s) for n, s in zip(tensor.shape, tensor.stride()) if n != 1), key=lambda each: each[1]):
        if stride != step:
            return False
        step *= size
    return True


class Weights:
    """All weights of a model: streamed groups, and small parameters and buffers that stay on the device."""

    def __init__(self, model: torch.nn.Module, threshold: int) -> None:
        self.groups: list[Group] = []
        self.small: list[tuple[torch.nn.Module, str, torch.nn.Parameter]] = []
        self.buffers: list[tuple[torch.nn.Module, str, torch.Tensor]] = []
        self.total = 0  # bytes of all parameters, each counted once
        self.small_bytes = 0
        by_param: dict[int, Optional[Group]] = {}
        by_memory: dict[Any, Group] = {}
        seen: set[int] = set()
        kept = {id(param) for module in model.modules() if keeps_its_weights(module) for param in module._parameters.values()}
        for path, module in model.named_modules():
            prefix = path + "." if path else ""
            for name, param in module._parameters.items():
                if param is None:
                    continue
                check(prefix + name, param)
                if id(param) in by_param:
                    group = by_param[id(param)]
                    if group:
                        group.places.append((module, name))
                    else:
                        self.small.append((module, name, param))
                    continue
                nbytes = param.numel() * param.element_size()
                key = (param.data_ptr(), nbytes, param.dtype, param.stride(), param.shape)
                group = by_memory.get(key) if nbytes and param.device.type != "meta" else None
                if group is None:
                    self.total += nbytes
                    if nbytes < threshold or type(param.data) is not torch.Tensor or id(param) in kept:
                        by_param[id(param)] = None
                        self.small.append((module, name, param))
                        self.small_bytes += aligned(nbytes)
                        continue
                    group = by_memory[key] = Group(prefix + name, param)
                    group.index = len(self.groups)
                    self.groups.append(group)
                by_param[id(param)] = group
                group.places.append((module, name))
                group.params.append(param)
                group.requires_grad.append(param.requires_grad)
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    self.buffers.append((module, name, buffer))
                    if id(buffer) not in seen:
                        self.small_bytes += aligned(buffer.numel() * buffer.element_size())
                        seen.add(id(buffer))

    @property
    def streamed_bytes(self) -> int:
        return sum(aligned(group.nbytes) for group in self.groups)

    @property
    def largest(self) -> Group:
        return max(self.groups, key=lambda group: group.nbytes)

    def largest_use(self) -> list[Group]:
        """The weights of the module with the most bytes: a module may use all its own weights at a time."""
        own: dict[int, list[Group]] = {}
        for group in self.groups:
            for module in {id(module) for module, _ in group.places}:
                own.setdefault(module, []).append(group)
        return max(own.values(), key=bytes_in)

    def small_on(self, device: torch.device) -> int:
        """Device memory beside the streamer's: small parameters, buffers, and on a GPU an idle view of each group. An idle
        view takes one block of torch's allocator, 512 bytes."""
        return self.small_bytes + (0 if device.type == "cpu" else 2 * ALIGNMENT * len(self.groups))

    def smallest_budget(self, device: torch.device) -> int:
        return self.small_on(device) + bytes_in(self.largest_use())


def bytes_in(groups: Iterable[Group]) -> int:
    """The bytes that the groups take in a ring."""
    return sum(aligned(group.nbytes) for group in groups)


def check(name: str, param: torch.nn.Parameter) -> None:
    if isinstance(param, torch.nn.parameter.UninitializedParameter):
        raise InvalidValue(f"'{name}' has no shape yet (a lazy module): run the model once before slipstream.offload")
    if param.layout != torch.strided:
        raise InvalidValue(f"'{name}' is a sparse tensor: slipstream.offload needs dense weights")


def find_weights(model: torch.nn.Module, budget: Optional[int]) -> Weights:
    """The weights, with the largest threshold for which the small ones take at most 1/16 of the budget."""
    for threshold in THRESHOLDS:
        weights = Weights(model, threshold)
        if weights.groups and (budget is None or weights.small_bytes <= budget // 16):
            return weights
    return weights


def require_budget(model: torch.nn.Module, budget: int, device: torch.device) -> None:
    """Raises an error if the budget is too small. The error names a budget that is large enough. The loop is needed
    because a larger budget makes more weights small, so it needs more memory."""
    room = budget
    while True:
        weights = find_weights(model, room)
        needed = weights.smallest_budget(device)
        if needed <= room:
            break
        room = needed
    if room == budget:
        return
    used = weights.largest_use()
    names = ", ".join(f"'{group.name}'" for group in used[:4]) + (", ..." if len(used) > 4 else "")
    at_once = "" if len(used) == 1 else ", which one module may use at a time"
    raise OutOfMemory(f"a budget of {budget} bytes ({text_of(budget)}) is too small: the model needs at least {room} bytes "
                      f"({text_of(room)}): {bytes_in(used)} for {names}{at_once}, {weights.small_on(device)} for small weights and "
                      "buffers")


def idle_view_for(group: Group, device: torch.device) -> torch.Tensor:
    """A tensor with the shape, type and device of the weight, on the memory of one element. The element is NaN, so that a
    use without an acquire is noticed; for integers it is 0."""
    with torch.inference_mode(False):
        one = torch.zeros((1,), dtype=group.dtype, device=device)
        if group.dtype.is_complex:
            one.fill_(complex(math.nan, math.nan))
        elif group.dtype.is_floating_point:
            one.view(torch.uint8).fill_(0x7F if group.dtype.itemsize == 1 else 0xFF) if hasattr(group.dtype, "itemsize") \
                else one.fill_(math.nan)
        return one.as_strided(group.shape, (0,) * len(group.shape))


class HostMapped:
    """Pinned host memory as an array of the GPU, for torch.as_tensor()."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3,
                                         "strides": None}


def rows_of(group: Group, device: torch.device) -> Optional[torch.Tensor]:
    """The weight in host memory, readable on the device without a copy. None: it is only in a file."""
    if group.host is None or device.type == "cpu":
        return group.host
    with torch.inference_mode(False):
        memory = torch.as_tensor(HostMapped(group.host.data_ptr(), group.nbytes), device=device)
        if memory.data_ptr() != group.host.data_ptr():
            return None  # torch has made a copy
        return group.view_of(memory)


class Progress:
    """A line on stderr, only on a terminal, and only if the work takes longer than half a second."""

    def __init__(self, what: str, total: int) -> None:
        self.what, self.total, self.done = what, max(total, 1), 0
        self.shown = False
        self.begin = self.last = time.monotonic()
        self.on = sys.stderr is not None and sys.stderr.isatty()

    def add(self, size: int) -> None:
        self.done += size
        now = time.monotonic()
        if not self.on or now - self.begin < 0.5 or (now - self.last < 0.1 and self.done < self.total):
            return
        self.last, self.shown = now, True
        part = self.done / self.total
        bar = "#" * int(30 * part)
        sys.stderr.write(f"\rslipstream: {self.what} [{bar:<30}] {text_of(self.done)} of {text_of(self.total)}")
        sys.stderr.flush()

    def end(self) -> None:
        if self.shown:
            sys.stderr.write("\n")
            sys.stderr.flush()


class PinnedBlocks:
    """Pinned memory for the groups, in blocks of about 1 GiB. Each group gets a range of a block."""

    def __init__(self, device: _core.Device, sizes: list[int]) -> None:
        self.device, self.sizes = device, sizes
        self.at = 0        # the index of the next group in `sizes`
        self.left = 0      # free bytes of the current block, which begin at `offset`
        self.offset = 0
        self.buffer: Any = None  # the current block
        self.bytes = 0     # of all blocks

    def take(self) -> tuple[Any, torch.Tensor]:
        """The memory of the next group, as a Range and as a tensor."""
        size = aligned(self.sizes[self.at])
        if size > self.left:
            block = 0
            for each in self.sizes[self.at:]:
                if block and block + aligned(each) > BLOCK:
                    break
                block += aligned(each)
            try:
                self.buffer = self.device.alloc(block, kind="pinned", name="weights in host memory")
            except OutOfMemory as error:
                raise OutOfMemory(f"cannot allocate {text_of(block)} of pinned host memory, after {text_of(self.bytes)}: {error}"
                                  ) from error
            self.bytes += block
            self.offset, self.left = 0, block
        begin = self.offset
        self.offset += size
        self.left -= size
        size = self.sizes[self.at]
        self.at += 1
        memory = torch.frombuffer(memoryview(self.buffer), dtype=torch.uint8, count=size, offset=begin)
        return self.buffer[begin:begin + size], memory


def in_files(group: Group, files: _core.WeightFiles, tensors: dict[str, Any], names: Callable[[Group], Iterator[str]]) -> bool:
    """Finds the tensor of a group in the files. False: there is none."""
    for name in names(group):
        found = tensors.get(name)
        if found is None:
            continue
        shape = found[1]
        if list(shape) != list(group.shape):
            raise InvalidValue(f"tensor '{name}' has the shape {list(shape)} in the files, but {list(group.shape)} in the model")
        check_cast(name, found[0], group.dtype)
        group.tensor = name
        return True
    return False


def check_cast(name: str, kind: str, dtype: torch.dtype) -> None:
    """Refuses casts from or to integers and float8: such weights are quantised, and their numbers mean nothing without
    their scales."""
    found = file_dtype(kind)
    if found != dtype and (found.is_floating_point != dtype.is_floating_point or "float8" in f"{found} {dtype}"):
        raise InvalidValue(f"tensor '{name}' has the type {kind} in the files, but {dtype} in the model. Quantised weights are not "
                           "supported: give files with the weights in the type of the model, or in another float type")


def check_unused(tensors: Any, used: set[str], ignored: Any) -> None:
    """Looks for tensors of the files that no weight uses. Raises an error for a scale of a used weight, and warns about
    the others. `ignored`: patterns of names that need no warning."""
    unused = [name for name in tensors if name not in used and not any(re.search(pattern, name) for pattern in ignored)]
    for name in unused:
        bases = [name[:found.start()] for found in re.finditer("[._](?=(weight_)?(scale|scb|absmax|quant|zero))", name.lower())]
        if any(base in used or base + ".weight" in used for base in bases):
            raise InvalidValue(f"tensor '{name}' of the files is not used by the model, but it scales a weight that is: quantised "
                               "weights are not supported; give files with the weights themselves")
    if unused:
        some = ", ".join(f"'{name}'" for name in unused[:4]) + (", ..." if len(unused) > 4 else "")
        warnings.warn(f"slipstream: {len(unused)} tensors of the files are not used by the model: {some}", stacklevel=2)


def file_dtype(kind: str) -> torch.dtype:
    found = getattr(torch, FILE_TYPES.get(kind, ""), None)
    if found is None:
        raise InvalidValue(f"tensors of the type {kind} are not supported")
    return found


def read_tensor(files: _core.WeightFiles, name: str, kind: str, shape: Any) -> torch.Tensor:
    """A tensor of the files, in pageable memory."""
    made = torch.empty(tuple(shape), dtype=file_dtype(kind))
    if made.numel():
        files.read(name, made.data_ptr(), made.numel() * made.element_size())
    return made
