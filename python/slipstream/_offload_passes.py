"""Passes of an offloaded model: which weights a call uses, in which order, and how long its kernels take.

Calls of the same module whose numbers of tokens have the same number of bits are one kind of pass. So a prompt and a
generated token are two kinds. The first calls of a kind are observed, then the kind has a plan of its own.
"""

from __future__ import annotations

import time
from typing import Any, Callable, NamedTuple, Optional

import torch

from ._offload_groups import Group, aligned

NAMED_INPUTS = ("input_ids", "decoder_input_ids", "inputs_embeds", "decoder_inputs_embeds", "pixel_values", "hidden_states",
                "input_features", "x", "input")
OBSERVED_CALLS = (1, 2, 8, 32)  # when the resident weights are chosen, these calls of a kind are observed: the first may be slow


def kind_of(number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, int]:
    """The kind of a call: the number of the module, and the number of bits of the number of tokens of its input."""
    for name in NAMED_INPUTS:
        value = kwargs.get(name)
        if isinstance(value, torch.Tensor):
            return number, tokens_of(value).bit_length()
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            return number, tokens_of(value).bit_length()
    return number, 0


def tokens_of(tensor: torch.Tensor) -> int:
    if tensor.is_floating_point() and tensor.dim() > 1:
        return tensor.numel() // max(tensor.shape[-1], 1)
    return tensor.numel()


class HostClock:
    """A mark is a time of the host: on cpu, kernels run in the calling thread."""

    @staticmethod
    def mark() -> float:
        return time.perf_counter()

    @staticmethod
    def reached(mark: float) -> bool:
        return True

    @staticmethod
    def wait(mark: float) -> None:
        pass

    @staticmethod
    def picoseconds(begin: float, end: float) -> int:
        return max(int((end - begin) * 1e12), 1)


class CudaClock:
    """A mark is a timed event in the current stream of the device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def mark(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    @staticmethod
    def reached(mark: Any) -> bool:
        return mark.query()

    @staticmethod
    def wait(mark: Any) -> None:
        mark.synchronize()

    @staticmethod
    def picoseconds(begin: Any, end: Any) -> int:
        return max(int(begin.elapsed_time(end) * 1e9), 1)


class Use(NamedTuple):
    """A use of a group in a call. `picos`: the time of the kernels until the next use begins, in picoseconds. `last`: the
    number of the last use that began before this one ended."""

    group: Group
    picos: int
    last: int


class Observation:
    """The uses of one call, with marks before and after each acquire: between them the stream waits for the load."""

    def __init__(self, kind: tuple[int, int], clock: Any) -> None:
        self.kind, self.clock = kind, clock
        self.begin = clock.mark()
        self.end: Any = None
        self.marks: list[tuple[Group, Any, Any]] = []
        self.last: list[int] = []        # as in Use
        self.open: dict[int, int] = {}   # by group: its use

    def begin_use(self, group: Group, before: Any, after: Any) -> None:
        self.open[group.index] = len(self.marks)
        self.last.append(len(self.marks))
        self.marks.append((group, before, after))

    def end_use(self, group: Group) -> None:
        use = self.open.pop(group.index, None)
        if use is not None:
            self.last[use] = len(self.marks) - 1

    def uses(self) -> list[Use]:
        """The uses with their times. The time before the first use is added to the last one: in a sequence of equal calls
        it follows that use."""
        ends = [before for _, before, _ in self.marks[1:]] + [self.end]
        found = [self.clock.picoseconds(after, end) for (_, _, after), end in zip(self.marks, ends)]
        if found:
            found[-1] += self.clock.picoseconds(self.begin, self.marks[0][1])
        return [Use(group, picos, last) for (group, _, _), picos, last in zip(self.marks, found, self.last)]

    def waited(self) -> int:
        """Picoseconds in which the stream waited for loads."""
        return sum(self.clock.picoseconds(before, after) for _, before, after in self.marks)

    def total(self) -> int:
        return self.clock.picoseconds(self.begin, self.end)


def in_order(groups: list[Group]) -> list[Use]:
    """One use of each group, without a time."""
    return [Use(group, 1, number) for number, group in enumerate(groups)]


def held_bytes(uses: list[Use]) -> int:
    """The maximum bytes that earlier uses hold when a use begins."""
    result = 0
    for number in range(len(uses)):
        result = max(result, sum(aligned(use.group.nbytes) for use in uses[:number] if use.last >= number))
    return result


class Pass:
    """A kind of call, and its number in the streamer."""

    def __init__(self, kind: tuple[int, int], name: str, uses: list[Use]) -> None:
        self.kind, self.name = kind, name
        self.uses = uses                   # of streamed groups
        self.number: Optional[int] = None  # None: it streams nothing
        self.calls = 0
        self.observed = 0
        self.total_ps = 0                  # of the last observed call
        self.waited_ps = 0                 # for loads, in the last observed call

    def observe(self, observation: Observation) -> bool:
        """Takes over the uses of the observed call if their order is new, or if the call was the fastest one with this order.
        False: the uses stay as they were."""
        self.observed += 1
        self.total_ps, self.waited_ps = observation.total(), observation.waited()
        uses = observation.uses()
        if self.observed > 1 and [(u.group, u.last) for u in uses] == [(u.group, u.last) for u in self.uses] and \
                sum(use.picos for use in uses) >= sum(use.picos for use in self.uses):
            return False
        self.uses = uses
        return True


def for_streamer(uses: list[Use]) -> list[tuple[str, int, int]]:
    """The uses in the form that WeightStreamer.add_pass takes."""
    return [(use.group.name, max(use.picos, 1), use.last - number) for number, use in enumerate(uses)]


def streamed_uses(uses: list[Use], is_resident: Callable[[Group], bool]) -> list[Use]:
    """The uses of streamed groups. The time of a use of a resident group is added to the streamed use before it."""
    result: list[Use] = []
    lead = 0                # the time before the first streamed use
    before: list[int] = []  # by use: the number of streamed uses up to it
    for use in uses:
        if not is_resident(use.group):
            result.append(use)
        elif result:
            result[-1] = result[-1]._replace(picos=result[-1].picos + use.picos)
        else:
            lead += use.picos
        before.append(len(result))
    result = [use._replace(last=before[use.last] - 1) for use in result]
    if result:
        result[-1] = result[-1]._replace(picos=result[-1].picos + lead)
    return result
