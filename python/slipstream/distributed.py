"""The backend "slip" of torch.distributed, for cpu tensors.

    import torch.distributed as dist
    import slipstream.distributed
    dist.init_process_group("slip")

docs/torch_distributed.md says what it supports.
"""

import inspect

import torch
import torch.distributed as dist

from . import _distributed


def _version(text):
    return tuple(text.split("+")[0].split(".")[:2])


def _register():
    if _version(_distributed.torch_version) != _version(torch.__version__):
        raise ImportError(f"slipstream.distributed was built for torch {_distributed.torch_version}, "
                          f"and this is torch {torch.__version__}: build it again")
    if hasattr(dist.Backend, "SLIP"):
        return
    takes_devices = "devices" in inspect.signature(dist.Backend.register_backend).parameters
    dist.Backend.register_backend("slip", _distributed.create, **({"devices": ["cpu"]} if takes_devices else {}))


_register()
