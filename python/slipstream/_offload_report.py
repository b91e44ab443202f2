"""The results of model.slip.plan(), predict() and report() of an offloaded model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Optional

from ._offload_groups import text_of
from ._trace import Trace

if TYPE_CHECKING:
    from ._offload_session import Offloaded
    from ._offload_passes import Pass


@dataclass(frozen=True)
class OffloadPlan:
    """Which weights stay on the device and which are streamed. `passes`: by kind of call, the bytes of weights that a call
    loads; compressed weights take fewer bytes of the link. `settled`: the choice was made from observed calls; before that
    it may still change."""

    device: str
    settled: bool
    budget: Optional[int]
    small_bytes: int
    resident_bytes: int
    ring_bytes: int
    slot_bytes: int  # device memory for compressed weights, which are decoded from there
    weight_bytes: int
    pinned_bytes: int
    resident: list[str]
    streamed: list[str]
    passes: dict[str, int]
    link_bytes_per_second: float
    text: str = field(repr=False)

    @property
    def device_bytes(self) -> int:
        """Device memory for all weights, the ring and the slots; without activations."""
        return self.small_bytes + self.resident_bytes + self.ring_bytes + self.slot_bytes

    def __str__(self) -> str:
        return self.text

    @staticmethod
    def of(session: Offloaded) -> OffloadPlan:
        streamer, weights = session._streamer, session._weights
        assert streamer is not None
        sizes = streamer.plan_of(0)
        resident = [group.name for group in weights.groups if streamer.resident(group.index) is not None]
        streamed = [group.name for group in weights.groups if streamer.resident(group.index) is None]
        passes = {each.name: sum(use.group.nbytes for use in each.uses) for each in session._passes.values()}
        small, kept, ring = session._small_bytes(), sizes["resident_bytes"], sizes["ring_bytes"]
        rate = sizes["load"][0]
        slots = sizes["slot_bytes"]
        lines = [f"device         {session._device}: {text_of(small + kept + ring + slots)} for weights"
                 + (f" of a budget of {text_of(session._options['budget'])}" if session._options["budget"] is not None else ""),
                 f"  small        {text_of(small)}: {len(weights.small)} small weights, {len(weights.buffers)} buffers",
                 f"  resident     {text_of(kept)}: {len(resident)} weights",
                 f"  ring         {text_of(ring)}, for {len(streamed)} streamed weights",
                 *([f"  slots        {text_of(slots)}, for compressed weights before they are decoded"] if slots else []),
                 f"link           {text_of(rate)}/s"]
        packed = [group for group in weights.groups if group.packed is not None]
        used = [each for each in sizes["groups"] if each["compressed_bytes"]]
        if packed or used:
            whole = sum(group.nbytes for group in packed) or sum(each["bytes"] for each in used)
            stored = sum(group.packed.compressed_nbytes for group in packed) or sum(each["compressed_bytes"] for each in used)
            lines.append(f"compressed     {text_of(whole)} of weights in {text_of(stored)} of {'pinned memory' if packed else 'the files'} "
                         f"({whole / stored:.2f}x); "
                         f"{sum(each['resident'] for each in used)} stay so on the device, "
                         f"{sum(not each['resident'] for each in used)} are streamed so")
        if not session._settled:
            lines.append("not final      the resident weights are chosen after the first calls, by their order and times")
        for each in session._passes.values():
            link = streamer.plan_of(each.number)["link_bytes"] if each.number is not None else 0
            over_link = "" if link == passes[each.name] else f" of weights, {text_of(link)} over the link"
            lines.append(f"a call         {each.name}: {text_of(passes[each.name])}{over_link}, at least {link / rate * 1e3:.4g} ms")
        return OffloadPlan(str(session._device), session._settled, session._options["budget"], small, kept, ring,
                           slots, weights.total, session._host.pinned_bytes, resident, streamed, passes, rate,
                           "\n".join(lines) + "\n")


@dataclass(frozen=True)
class OffloadPrediction:
    """The simulated time of a call in a sequence of equal calls. Each of them loads `loaded_bytes`."""

    name: str
    seconds: float
    compute_seconds: float
    exposed_seconds: float
    loaded_bytes: int
    trace: Optional[Trace] = field(repr=False)

    @staticmethod
    def of(session: Offloaded, found: Pass) -> OffloadPrediction:
        if found.number is None:
            seconds = found.total_ps / 1e12
            return OffloadPrediction(found.name, seconds, seconds, 0.0, 0, None)
        assert session._streamer is not None
        made: dict[str, Any] = session._streamer.predict(found.number)
        compute = session._streamer.plan_of(found.number)["compute_ps"]
        return OffloadPrediction(found.name, made["step_ps"] / 1e12, compute / 1e12, made["exposed_ps"] / 1e12,
                                 sum(use.group.nbytes for use in found.uses), Trace(made["trace"]))


@dataclass(frozen=True)
class OffloadReport:
    """The calls and loads since the resident weights were chosen."""

    calls: dict[str, int]
    planned_loads: int
    planned_bytes: int
    on_demand_loads: int
    on_demand_bytes: int
    stalled_seconds: float
    replans: int
    device_bytes: int
    pinned_bytes: int
    text: str = field(repr=False)

    def __str__(self) -> str:
        return self.text

    @staticmethod
    def of(session: Offloaded) -> OffloadReport:
        assert session._streamer is not None
        made = session._streamer.report()
        calls = {each.name: each.calls for each in session._passes.values()}
        device_bytes = OffloadPlan.of(session).device_bytes
        waited = {each.name: each.waited_ps / 1e12 for each in session._passes.values()}
        text = "".join(f"calls          {count} of {name}; an observed one waited {waited[name] * 1e3:.3g} ms for loads\n"
                       for name, count in calls.items()) + made["text"]
        text += f"memory         {text_of(device_bytes)} on {session._device}, {text_of(session._host.pinned_bytes)} pinned\n"
        return OffloadReport(calls, made["planned_loads"], made["planned_bytes"], made["on_demand_loads"],
                             made["on_demand_bytes"], made["stalled_ps"] / 1e12, made["replans"], device_bytes,
                             session._host.pinned_bytes, text)
