"""slipstream.offload: runs a PyTorch model whose weights do not fit the device."""

from __future__ import annotations

import atexit
import os
import weakref
from typing import Any, Optional, Union

import torch

from . import _core, _offload_hooks
from ._errors import Error, InvalidValue
from ._offload_groups import Weights, bytes_of, find_weights, require_budget, text_of
from ._offload_session import Offloaded

Size = Union[int, float, str]
_alive: weakref.WeakSet[Offloaded] = weakref.WeakSet()


def check_model(model: Any) -> None:
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"offload() takes a torch.nn.Module, not {type(model).__name__}")
    for path, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise InvalidValue(f"'{path or 'the model'}' is a TorchScript module: its forward cannot be observed")
        if isinstance(module._parameters, _offload_hooks.Guarded):
            raise Error("the model, or a part of it, is offloaded already: call model.slip.restore() first")
    taken = {id(param) for session in list(_alive) if not session._restored for group in session._weights.groups
             for param in group.params}
    for path, param in model.named_parameters():
        if id(param) in taken:
            raise Error(f"'{path}' is also a weight of another model, which is offloaded: call slip.restore() of that model first")
    if hasattr(model, "slip"):
        raise InvalidValue("the model has an attribute 'slip' of its own, which slipstream.offload needs")


def device_of(name: Any) -> torch.device:
    device = torch.device(name if name is not None else "cuda:0" if torch.cuda.is_available() else "cpu")
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise InvalidValue(f"no device '{device}': this PyTorch has no CUDA, or there is no GPU; device='cpu' works")
        return torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
    if device.type != "cpu":
        raise InvalidValue(f"no device '{device}': offload() works on 'cuda:N' and 'cpu'")
    return torch.device("cpu")


def free_memory(model: torch.nn.Module, device: torch.device) -> int:
    """Bytes of a GPU that are free when the weights of the model have left it. Includes the memory that torch's allocator
    caches."""
    own = {each.data_ptr(): each.numel() * each.element_size() for each in (*model.parameters(), *model.buffers())
           if each.device == device and each.layout == torch.strided}
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + cached + sum(own.values())


def offload(model: torch.nn.Module, budget: Optional[Size] = None, device: Any = None, host_memory: Optional[Size] = None,
            slowdown: Optional[float] = None, *, ring: Optional[Size] = None, stream_all: bool = False,
            weights: Any = None, names: Any = None, compress: bool = False) -> torch.nn.Module:
    """See slipstream.offload."""
    check_model(model)
    if budget is not None and slowdown is not None:
        raise InvalidValue("give a budget or a slowdown, not both: each follows from the other")
    if slowdown is not None and not slowdown >= 0:
        raise InvalidValue(f"slowdown is {slowdown}; 0.05 means at most 5 % slower")
    if host_memory is not None and weights is None:
        raise InvalidValue("host_memory limits weights that come from files: give the files too, weights='folder'")
    on = device_of(device)
    if budget is None and slowdown is None and on.type == "cpu":
        raise InvalidValue("on cpu, give a budget for the memory of weights, for example budget='8GiB' or '50%' (of the weights), or a "
                           "slowdown: only on a GPU the free memory determines a budget")
    files = _core.WeightFiles(os.fspath(weights)) if weights is not None else None
    whole = Weights(model, 1).total
    room = None if budget is None else bytes_of(budget, "budget", whole)
    if room is None and slowdown is None:
        room = int(free_memory(model, on) * 0.75)
    found = find_weights(model, room)
    if not found.groups:
        raise InvalidValue("the model has no weights that could be streamed")
    if files is None:
        for path, param in model.named_parameters():
            if param.device.type == "meta":
                raise InvalidValue(f"'{path}' is on the meta device, without values: give the files, weights='folder'")
    options = {"budget": room, "slowdown": slowdown, "stream_all": stream_all, "compress": bool(compress),
               "host_memory": None if host_memory is None else bytes_of(host_memory, "host_memory", whole),
               "ring": None if ring is None else bytes_of(ring, "ring", whole)}
    if room is not None:
        require_budget(model, room, on)
    session = Offloaded(model, on, found, options, files)
    if options["ring"] is not None:
        left = session._room()
        if left is not None and options["ring"] > left:
            raise InvalidValue(f"ring is {options['ring']} bytes ({text_of(options['ring'])}), but a budget of {text_of(room or 0)} leaves "
                               f"{left} bytes ({text_of(left)}) for it")
        options["ring"] = min(options["ring"], found.streamed_bytes)
    if names is None:
        paths = {id(module): path + "." if path else "" for path, module in model.named_modules()}
        names = lambda module, name: iter((paths[id(module)] + name,))  # noqa: E731
    try:
        model.__dict__["slip"] = session  # first: if the undo below fails too, the program can call restore()
        session._host.prepare(names)
        session._hook()
        _alive.add(session)
        session._start()
        return model
    except BaseException:
        session._close_streamer()
        session._undo_all()
        raise


@atexit.register
def _at_exit() -> None:
    for session in list(_alive):
        if os.getpid() == session._process and session._streamer is not None:
            session._streamer.close()
