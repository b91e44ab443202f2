"""Records PyTorch's own kernels for a Trace: by torch.profiler, with the names that the program gives to its streams."""

from __future__ import annotations

import json
import os
import tempfile
from typing import Any, Mapping

_MARK = "slipstream.watch: "   # begins the names of marks: a mark is a range in which one kernel is launched into one stream


class TorchProfile:
    """Records from its construction until read()."""

    def __init__(self, streams: Mapping[str, Any]) -> None:
        import torch
        self._torch = torch
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self._profile = torch.profiler.profile(activities=activities)
        self._profile.start()
        try:
            for name, stream in streams.items():
                with torch.cuda.stream(stream), torch.profiler.record_function(_MARK + name):
                    torch.zeros(1, device=stream.device)
        except BaseException:
            self._profile.stop()
            raise

    def stop(self) -> None:
        """Waits for the GPU and ends the recording."""
        if self._torch.cuda.is_available():
            self._torch.cuda.synchronize()
        self._profile.stop()

    def write(self, path: str) -> None:
        """Writes a Chrome trace with the names of the streams."""
        with tempfile.TemporaryDirectory(prefix="slipstream-") as folder:
            raw = os.path.join(folder, "profile.json")
            self._profile.export_chrome_trace(raw)
            with open(raw, encoding="utf-8") as file:
                profile = json.load(file)
        events = profile["traceEvents"] if isinstance(profile, dict) else profile   # a list: PyTorch without Kineto
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"traceEvents": name_streams(events)}, file)


def name_streams(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The events without the marks and their kernels, and with a name for each marked stream. The kernel that was
    launched in a mark ran in the stream that the mark names: its event has the number of that stream in the profile."""
    marks = [event for event in events
             if event.get("ph") == "X" and str(event.get("name", "")).startswith(_MARK) and event.get("cat") == "user_annotation"]
    names: dict[tuple[Any, Any], str] = {}
    dropped: set[int] = set()
    for mark in marks:
        inside = [event for event in events if _is_inside(event, mark)]
        launches = {event["args"]["correlation"] for event in inside if "correlation" in event.get("args", {})}
        dropped.update(id(event) for event in inside)
        for event in events:
            args = event.get("args", {})
            if event.get("ph") == "X" and "stream" in args and args.get("correlation") in launches and id(event) not in dropped:
                names[event["pid"], event["tid"]] = mark["name"][len(_MARK):]
                dropped.add(id(event))
    kept = [event for event in events if id(event) not in dropped and not str(event.get("name", "")).startswith(_MARK)]
    kept = [event for event in kept
            if not (event.get("ph") == "M" and event.get("name") == "thread_name" and (event.get("pid"), event.get("tid")) in names)]
    return kept + [{"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}
                   for (pid, tid), name in names.items()]


def _is_inside(event: dict[str, Any], mark: dict[str, Any]) -> bool:
    """Whether the event is work of the mark's thread during the mark."""
    if event.get("ph") != "X" or (event.get("pid"), event.get("tid")) != (mark["pid"], mark["tid"]):
        return False
    return mark["ts"] <= event["ts"] and event["ts"] + event.get("dur", 0) <= mark["ts"] + mark["dur"]
