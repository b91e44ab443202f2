"""Models without weights in memory: they are built on the meta device, and their weights come from safetensors files."""

from __future__ import annotations

import contextlib
import json
import os
import re
import warnings
from typing import Any, Iterator, Optional

import torch

from . import _core
from ._errors import InvalidValue
from ._offload import offload


@contextlib.contextmanager
def empty_weights() -> Iterator[None]:
    """Parameters of modules that are made inside have no memory (device "meta"). Buffers get memory and values as always,
    because many models compute them."""
    register = torch.nn.Module.register_parameter

    def without_memory(module: torch.nn.Module, name: str, param: Optional[torch.nn.Parameter]) -> None:
        register(module, name, param)
        made = module._parameters.get(name)
        if made is not None and made.device.type != "meta":
            module._parameters[name] = torch.nn.Parameter(made.to("meta"), requires_grad=made.requires_grad)

    torch.nn.Module.register_parameter = without_memory  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.nn.Module.register_parameter = register  # type: ignore[method-assign]


@contextlib.contextmanager
def default_dtype(kind: Optional[torch.dtype]) -> Iterator[None]:
    before = torch.get_default_dtype()
    if kind is not None:
        torch.set_default_dtype(kind)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def class_of(given: Any, config: Any) -> Any:
    """The class for `given`: a class, the name of a class of transformers, or None for the one that the config names."""
    if given is not None and not isinstance(given, str):
        return given
    import transformers
    name = given or next(iter(getattr(config, "architectures", None) or ()), None)
    if name is None:
        raise InvalidValue("config.json names no architecture: give the class, for example transformers.AutoModelForCausalLM")
    found = getattr(transformers, name, None)
    if found is None:
        raise InvalidValue(f"transformers has no class '{name}'")
    return found


def from_pretrained(cls: Any, path: Any, budget: Any = None, device: Any = None, host_memory: Any = None,
                    slowdown: Optional[float] = None, *, dtype: Any = None, **options: Any) -> torch.nn.Module:
    """See slipstream.from_pretrained."""
    folder = os.fspath(path)
    if not os.path.isdir(folder):
        raise InvalidValue(f"'{folder}' is not a folder; from_pretrained() reads a folder with config.json and *.safetensors")
    try:
        import transformers
    except ImportError as error:
        raise ImportError("slipstream.from_pretrained needs the package transformers. Without it: build the model under "
                          "slipstream.empty_weights(), then slipstream.offload(model, weights='folder')") from error
    config = transformers.AutoConfig.from_pretrained(folder)
    if getattr(config, "quantization_config", None):
        raise InvalidValue(f"'{folder}' has quantised weights (quantization_config in its config.json), which from_pretrained() does "
                           "not read: give a folder with the weights in a float type")
    made_of = class_of(cls, config)
    kind = dtype if dtype is not None else getattr(config, "dtype", None) or getattr(config, "torch_dtype", None)
    if isinstance(kind, str):
        kind = getattr(torch, kind)
    with empty_weights(), default_dtype(kind):
        model = made_of.from_config(config) if hasattr(made_of, "from_config") else made_of(config)
    keep_in_float32(model, kind)
    if hasattr(model, "tie_weights"):
        model.tie_weights()
    with contextlib.suppress(OSError, ValueError, json.JSONDecodeError):
        if hasattr(model, "can_generate") and model.can_generate():
            model.generation_config = transformers.GenerationConfig.from_pretrained(folder)
    names = names_of(model)
    if missing := missing_in(model, _core.WeightFiles(folder), names):
        # In some models one parameter consists of several tensors of the files, for example the experts of a layer.
        if host_memory is not None:
            raise InvalidValue(f"'{missing[0]}' is not a tensor of the files: transformers must convert them, in memory, so "
                               "host_memory cannot be kept")
        warnings.warn(f"slipstream.from_pretrained: {len(missing)} weights, such as '{missing[0]}', are not tensors of the files. "
                      "transformers converts them: it loads the whole model into memory first", stacklevel=3)
        del model
        model = made_of.from_pretrained(folder, dtype=kind).eval()
        return offload(model, budget, device, None, slowdown, **options)
    model.eval()
    return offload(model, budget, device, host_memory, slowdown, weights=folder, names=names, **options)


def keep_in_float32(model: torch.nn.Module, kind: Optional[torch.dtype]) -> None:
    """Converts the parameters that a class of transformers keeps in float32: their layers overflow in a smaller type."""
    wanted = list(getattr(model, "_keep_in_fp32_modules_strict", None) or ()) if kind in (torch.float16, torch.bfloat16) else []
    if kind == torch.float16:
        wanted += getattr(model, "_keep_in_fp32_modules", None) or ()
    made: dict[int, torch.nn.Parameter] = {}
    for path, module in model.named_modules() if wanted else ():
        for name, param in module._parameters.items():
            full = f"{path}.{name}"
            if param is None or param.dtype != kind or not any(re.search(rf"(^|\.){each}($|\.)", full) for each in wanted):
                continue
            if id(param) not in made:
                made[id(param)] = torch.nn.Parameter(param.to(torch.float32), requires_grad=param.requires_grad)
            module._parameters[name] = made[id(param)]


def missing_in(model: torch.nn.Module, files: _core.WeightFiles, names: Any) -> list[str]:
    """The parameters that have no tensor under any of their names."""
    tensors = files.tensors()
    places: dict[int, list[tuple[torch.nn.Module, str]]] = {}
    for module in model.modules():
        for name, param in module._parameters.items():
            if param is not None:
                places.setdefault(id(param), []).append((module, name))
    return [next(iter(names(*found[0]))) for found in places.values()
            if not any(name in tensors for place in found for name in names(*place))]


def names_of(model: torch.nn.Module) -> Any:
    """The names that a weight may have in the files: with or without the prefix of the base model."""
    prefix = getattr(model, "base_model_prefix", "") or ""
    paths = {id(module): path + "." if path else "" for path, module in model.named_modules()}

    def names(module: torch.nn.Module, name: str) -> Iterator[str]:
        full = paths[id(module)] + name
        yield full
        if prefix and full.startswith(prefix + "."):
            yield full[len(prefix) + 1:]
        elif prefix:
            yield f"{prefix}.{full}"

    return names
