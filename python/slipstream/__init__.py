"""Streams, events and plans with CUDA's rules: run them on host threads or a GPU, check and simulate them anywhere.

    import slipstream as slip

    device = slip.Device("cpu")                     # or "sim:h200", "cuda:0"
    load, compute = device.stream("load"), device.stream("compute")
    x, y = device.alloc(1024, "f4"), device.alloc(1024, "f4")
    load.fill(x, 0)
    compute.wait(load)                              # orders the streams, never blocks the host

    def add_one(x, y):                              # runs in stream order, with numpy arrays of the declared ranges
        y[:] = x + 1

    compute.launch(add_one, reads=[x], writes=[y])
    compute.sync()

`slipstream.distributed` holds the backend for torch.distributed; import it by itself, because it needs PyTorch.
"""

from __future__ import annotations

import os as _os

from . import _core
from ._core import (ERROR_CODES, Buffer, Communicator, Device, Event, Group, HostView, Plan, Range, Stream, UniqueId,
                    WeightFiles, WeightStreamer, group)
from ._errors import Error, InvalidValue, IoError, LaunchFailed, OutOfMemory, RankLost, Timeout
from ._reports import (CheckReport, FalseDependency, Fix, Place, PlanOp, PlanRace, Race, RaceReport, Span, Stats,
                       SuperfluousWait, Verification)
from ._torch import empty_weights, from_pretrained, offload
from ._trace import Check, Prediction, Trace, Watch, check, ops, predict, read_trace, trace, verify, watch
from ._version import __version__

_core._set_package(_os.path.dirname(_os.path.abspath(__file__)) + _os.sep)

__all__ = [
    "Buffer", "Check", "CheckReport", "Communicator", "Device", "ERROR_CODES", "Error", "Event", "FalseDependency", "Fix",
    "Group", "HostView", "InvalidValue", "IoError", "LaunchFailed", "OutOfMemory", "Place", "Plan", "PlanOp", "PlanRace",
    "Prediction", "Race", "RaceReport", "Range", "RankLost", "Span", "Stats", "Stream", "SuperfluousWait", "Timeout",
    "Trace", "UniqueId", "Verification", "Watch", "WeightFiles", "WeightStreamer", "__version__", "check", "empty_weights",
    "from_pretrained", "group", "offload", "ops", "predict", "read_trace", "trace", "verify", "watch",
]
