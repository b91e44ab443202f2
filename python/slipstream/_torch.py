"""The functions for PyTorch. PyTorch is imported when one of them is called: the package works without it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ContextManager, Optional, Union

if TYPE_CHECKING:
    import torch

Size = Union[int, float, str]


def _need_torch(what: str) -> None:
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise ImportError(f"slipstream.{what} needs PyTorch, which cannot be imported: {error}") from error


def offload(model: torch.nn.Module, budget: Optional[Size] = None, device: Any = None, host_memory: Optional[Size] = None,
            slowdown: Optional[float] = None, *, ring: Optional[Size] = None, stream_all: bool = False,
            weights: Any = None, compress: bool = False) -> torch.nn.Module:
    """Runs a model whose weights do not fit the device. Returns the model, which is used as before.

    `budget`: device memory for weights: bytes, "6GiB", or "50%" of the weights. Without it, 75 % of the free memory of a
    GPU. `slowdown` instead: 0.05 takes the smallest budget with which a call is at most 5 % slower. `device`: "cuda:0", or
    "cpu" for a model larger than the main memory. `weights`: safetensors files with the weights, for a model made under
    empty_weights(); `host_memory` limits how many of them are kept in host memory. `stream_all`: no weight stays on the
    device. `ring`: bytes for weights that are loaded ahead. `compress`: the weights in host memory are compressed without
    loss (bfloat16 to 70 %), and decoded on the device where that makes calls faster; the results have the same bits.

    `model.slip` has plan(), predict(), report(), verify(), timeline("x.html") and restore().
    """
    _need_torch("offload")
    from . import _offload
    return _offload.offload(model, budget, device, host_memory, slowdown, ring=ring, stream_all=stream_all, weights=weights,
                            compress=compress)


def from_pretrained(cls: Any, path: Any, budget: Optional[Size] = None, device: Any = None, host_memory: Optional[Size] = None,
                    slowdown: Optional[float] = None, *, dtype: Any = None, ring: Optional[Size] = None,
                    stream_all: bool = False, compress: bool = False) -> torch.nn.Module:
    """Loads a folder of Hugging Face (config.json and *.safetensors) as an offloaded model, without a copy of all weights
    in memory. `cls`: a class of transformers, its name, or None for the one that config.json names."""
    _need_torch("from_pretrained")
    from . import _offload_models
    return _offload_models.from_pretrained(cls, path, budget, device, host_memory, slowdown, dtype=dtype, ring=ring,
                                           stream_all=stream_all, compress=compress)


def empty_weights() -> ContextManager[None]:
    """`with slipstream.empty_weights(): model = Model()` builds a model whose parameters take no memory, for
    offload(model, weights="folder")."""
    _need_torch("empty_weights")
    from . import _offload_models
    return _offload_models.empty_weights()
