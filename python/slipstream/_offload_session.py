"""An offloaded model: its streamer, its plans, and its calls."""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from threading import get_ident
from typing import Any, Iterator, NoReturn, Optional

import torch

from . import _core, _offload_hooks
from ._errors import Error, InvalidValue, OutOfMemory
from ._offload_groups import ALIGNMENT, Group, Weights, aligned, bytes_in, rows_of, text_of
from ._offload_host import HostWeights
from ._offload_lock import CallLock
from ._offload_passes import (OBSERVED_CALLS, CudaClock, HostClock, Observation, Pass, Use, for_streamer, held_bytes, in_order,
                              kind_of, streamed_uses)
from ._offload_report import OffloadPlan, OffloadPrediction, OffloadReport
from ._trace import Trace

MAX_UNSETTLED = 4    # after this many observed kinds of calls the resident weights are chosen at the latest
ROWS_SHARE = 8       # a lookup of at most 1/8 of the rows of a weight reads them from host memory
TORCH_BLOCK = 2 << 20  # torch's allocator allocates large memory in multiples of this
DRIVER_BYTES = 8 << 20  # reserved for the driver's own memory of streams and events: 6 MB on an H200
LEGACY_STREAM = 1    # the value of cudaStreamLegacy; torch represents that stream as 0


class Offloaded:
    """`model.slip` of an offloaded model. Only one thread at a time may be inside a call of the model; see CallLock.

    The first calls run with all weights in the ring, and are observed. _settle() then chooses the resident weights. A
    call that fails sets `_restart`: the next one begins with a new streamer.
    """

    def __init__(self, model: torch.nn.Module, device: torch.device, weights: Weights, options: dict[str, Any],
                 files: Optional[_core.WeightFiles]) -> None:
        self._model, self._device, self._weights, self._files = model, device, weights, files
        self._options = options
        self._process = os.getpid()
        self._on_host = device.type == "cpu"
        self._slip_device = _core.Device("cpu" if self._on_host else f"cuda:{device.index}")
        self._clock: Any = HostClock() if self._on_host else CudaClock(device)
        self._streams: dict[int, _core.Stream] = {}
        self._streamer: Optional[_core.WeightStreamer] = None
        self._memory: Optional[torch.Tensor] = None
        self._host = HostWeights(model, device, self._slip_device, weights, files, options["host_memory"],
                                 options["compress"])
        self._modules: list[str] = []       # names of the wrapped modules, by number
        self._subtree: list[list[Group]] = []  # by number of the module: the streamed weights in it
        self._settled = False               # the resident weights are chosen
        self._link: Optional[tuple[float, int]] = None    # of a load: (bytes/s, latency); None: to be measured
        self._decode: Optional[tuple[float, int]] = None  # the same for decoding compressed weights
        self._passes: dict[tuple[int, int], Pass] = {}
        self._last: Optional[Pass] = None   # of the last call
        self._known: dict[tuple[int, int], list[Use]] = {}  # observed before the resident weights are chosen
        self._pending: list[Observation] = []  # of calls that may still run on the device
        self._observation: Optional[Observation] = None  # of the running call; None: it is not observed
        self._began = False                 # the streamer has begun a step
        self._restart = False               # the next call needs a new streamer
        self._lock = CallLock()
        self._opened: list[Group] = []      # acquired groups, innermost last
        self._scopes: list[tuple[_offload_hooks.HookScope, int]] = []  # calls of modules with hooks: groups before them
        self._restoring = self._restored = False

    # ---------------------------------------------------------------- for programs

    def plan(self) -> OffloadPlan:
        """Which weights stay on the device and which are streamed, with the plan of each kind of call."""
        with self._reading():
            return OffloadPlan.of(self)

    def predict(self, name: Optional[str] = None) -> OffloadPrediction:
        """The simulated time of a call in a sequence of equal calls. `name`: a kind of call; None: that of the last call."""
        with self._reading():
            return OffloadPrediction.of(self, self._find(name))

    def report(self) -> OffloadReport:
        """The loads so far, as planned and on demand."""
        with self._reading():
            return OffloadReport.of(self)

    def verify(self, name: Optional[str] = None) -> tuple[bool, str]:
        """Proves the order of the loads and uses of a kind of call: (proven, the text of the proof)."""
        with self._reading():
            found = self._find(name)
            assert self._streamer is not None
            return self._streamer.verify(found.number) if found.number is not None else (True, "nothing is streamed")

    def timeline(self, path: Any, run: Any = None, *, name: Optional[str] = None) -> None:
        """Writes a timeline page: the prediction, or the loads while `run()` is called, above the prediction."""
        predicted = self.predict(name).trace
        if run is None:
            if predicted is None:
                raise Error("nothing is streamed: there is no timeline")
            predicted.html(path, title="slipstream.offload, predicted")
            return
        with Trace() as recorded:
            run()
            self._sync()
        recorded.html(path, title="slipstream.offload", prediction=self.predict(name).trace)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """Around a report, which any thread may request."""
        self._in_this_process()
        with self._lock.reading():
            self._usable()
            yield

    def restore(self) -> torch.nn.Module:
        """Makes the model as it was before offload(), and frees the streamer's device memory and pinned memory. After an
        exception, for example OutOfMemory, it can be called again."""
        if self._restored:
            return self._model
        self._in_this_process()
        locked = False
        try:
            locked = self._lock.enter()
            if not locked:
                raise Error("restore() inside a call of the model" if self._lock.inside() else
                            "restore() while another thread is inside a call of the model: call it after that call")
            with contextlib.suppress(Error):  # the error of a load has no effect on the weights in host memory
                self._sync()
            if written := self._written():
                warnings.warn(f"slipstream: {written} was changed while the model was offloaded: the change is lost", stacklevel=2)
            self._restoring = True
            self._close_streamer()
            self._undo_all()
        finally:
            if locked:
                self._lock.leave()
        return self._model

    # ---------------------------------------------------------------- setup

    def _hook(self) -> None:
        """Wraps the modules that have streamed weights, and all modules that contain one of these."""
        model = self._model
        own: dict[int, dict[str, Group]] = {}
        for group in self._weights.groups:
            for module, name in group.places:
                own.setdefault(id(module), {})[name] = group
        wrapped = []
        for path, module in model.named_modules():
            inside = [group for each in module.modules() for group in own.get(id(each), {}).values()]
            if not inside and module is not model:
                continue
            wrapped.append((path, module, list(dict.fromkeys(inside))))
        for path, module, inside in wrapped:
            groups = own.get(id(module), {})
            before = {key: module.__dict__.get(key) for key in _offload_hooks.REPLACED}
            self._host.undo.append(lambda module=module, before=before: _offload_hooks.unwrap(module, before))
            table = groups.get("weight") if _offload_hooks.has_rows(module) else None
            if table is not None:
                table.rows = rows_of(table, self._device)
                table.has_rows = table.rows is not None or (self._on_host and table.host is None)
            _offload_hooks.wrap(module, len(self._modules), self, table if table and table.has_rows else None)
            _offload_hooks.guard(module, self)
            scope = _offload_hooks.HookScope(module, self)
            self._host.undo.append(scope.remove)
            _offload_hooks.scope_hooks(module, scope)
            content = module._parameters
            module.__dict__["_parameters"] = (_offload_hooks.Parameters(content, groups, self) if groups
                                              else _offload_hooks.Guarded(content, "its parameters"))
            self._modules.append(path or type(module).__name__)
            self._subtree.append(inside)

    def _undo_all(self) -> None:
        self._memory = None  # first: weights that return to the device may need this memory
        self._host.undo_all()
        self._model.__dict__.pop("slip", None)
        if not self._slip_device.closed:
            self._slip_device.close(force=True)
        self._restored = True

    # ---------------------------------------------------------------- the streamer

    def _room(self) -> Optional[int]:
        """Bytes of the budget for the streamer's memory."""
        budget = self._options["budget"]
        if budget is None:
            return None
        room = (budget - self._small_bytes()) // ALIGNMENT * ALIGNMENT
        largest = bytes_in(self._weights.largest_use())
        if not self._on_host and room >= 2 * (largest + DRIVER_BYTES):
            room -= DRIVER_BYTES
        return room // TORCH_BLOCK * TORCH_BLOCK if room >= largest + TORCH_BLOCK else room

    def _small_bytes(self) -> int:
        return self._weights.small_on(self._device)

    def _take_device_memory(self, size: int) -> None:
        """One tensor for resident groups and the ring, so that torch counts it and never frees it under a view."""
        if self._memory is not None and self._memory.numel() >= size:
            return
        self._memory = None
        with torch.inference_mode(False):
            try:
                whole = torch.empty(size + 4096, dtype=torch.uint8, device=self._device) if self._on_host \
                    else torch.empty(size, dtype=torch.uint8, device=self._device)
            except RuntimeError as error:
                raise OutOfMemory(f"cannot allocate {text_of(size)} on {self._device}: {error}") from error
        begin = -whole.data_ptr() % 4096 if self._on_host else 0
        self._memory = whole[begin:begin + size]

    def _make_streamer(self, orders: list[tuple[str, list[Use]]], *, budget: Optional[int] = None,
                       slowdown: Optional[float] = None, ring: Optional[int] = None, stream_all: bool = False
                       ) -> _core.WeightStreamer:
        """Plans a streamer in `budget` bytes of device memory. Without a budget it takes memory of its own."""
        memory = None
        if budget is not None:
            self._take_device_memory(budget)
            assert self._memory is not None
            memory = _core._wrap_address(self._slip_device, self._memory.data_ptr(), budget, "device", self._memory)
        streamer = _core.WeightStreamer(
            self._slip_device, [(group.name, source) for group, source in zip(self._weights.groups, self._host.sources)],
            memory=memory, budget=budget, slowdown=slowdown, ring=ring, stream_all=stream_all, load=self._link,
            decode=self._decode,
            host_memory=0 if self._files and not self._on_host else None)
        for name, uses in orders:
            streamer.add_pass(name, for_streamer(uses))
        streamer.plan()
        planned = streamer.plan_of(0)
        self._link, self._decode = planned["load"], planned["decode"]
        return streamer

    def _measure_files(self) -> None:
        """Measures the rate of reads from the files with one read. The page cache may not contain the bytes."""
        assert self._files is not None
        group = min(self._weights.groups, key=lambda each: abs(each.nbytes - (32 << 20)))
        if group.host is None and group.packed is None:
            into = torch.empty(group.nbytes, dtype=torch.uint8)
            begin = time.perf_counter()
            self._files.read(group.tensor, into.data_ptr(), group.nbytes)
            self._link = (group.nbytes / max(time.perf_counter() - begin, 1e-9), 0)

    def _start(self) -> None:
        """Makes the first streamer, which assumes the order of the modules. If all weights fit, they are resident; otherwise
        its ring takes all memory of the budget."""
        total, budget = self._weights.streamed_bytes, self._room()
        if budget is None:
            budget = max(4 * aligned(self._weights.largest.nbytes), 1 << 28)
        size = min(budget, total)
        fits = size == total and not self._options["stream_all"] and self._options["slowdown"] is None
        order = [("modules", in_order(self._weights.groups))]
        if self._on_host and self._files and self._link is None:
            self._measure_files()
        self._streamer = self._make_streamer(order, budget=size, ring=None if fits else size, stream_all=not fits)
        self._settled = False
        if fits:
            self._point_residents()

    def _start_again(self) -> None:
        """After an error: makes a new streamer, and forgets the observed calls."""
        with contextlib.suppress(Error):  # the error of a load, which was raised before
            self._sync()
        self._close_streamer()
        self._known.clear()
        if self._on_host:
            self._streams.clear()  # a failed load fails the stream that waits for it
        self._start()
        self._restart = False

    def _settle(self) -> None:
        """Chooses the resident weights, from the calls observed so far."""
        orders = [(self._name(kind), uses) for kind, uses in self._known.items() if uses]
        if not orders:
            orders = [("modules", in_order(self._weights.groups))]
        self._sync()
        self._close_streamer()
        options, total = self._options, self._weights.streamed_bytes
        budget = self._room()
        if options["slowdown"] is not None:
            self._memory = None
            if not self._on_host:
                torch.cuda.empty_cache()  # frees the memory of the moved weights: the trial cannot use torch's cache
            trial = self._make_streamer(orders, slowdown=options["slowdown"], ring=options["ring"])
            sizes = trial.plan_of(0)
            trial.close()
            budget = sizes["resident_bytes"] + sizes["ring_bytes"] + sizes["slot_bytes"]
        assert budget is not None
        # If weights are held while others are used, the ring has gaps. It must have space for the held weights and, at any
        # position, for the largest weight: hence twice its size.
        held = max(held_bytes(uses) for _, uses in orders)
        floor = held + 2 * aligned(self._weights.largest.nbytes) if held else 0
        budget = min(max(budget, floor if options["slowdown"] is not None else 0), total)
        ring = options["ring"]
        if ring is None and options["stream_all"] and not options["compress"]:
            ring = budget  # nothing else needs the memory
        self._streamer = self._make_streamer(orders, budget=budget, ring=ring, stream_all=options["stream_all"])
        if ring is None and 0 < self._streamer.plan_of(0)["ring_bytes"] < min(floor, budget):
            self._close_streamer()
            self._streamer = self._make_streamer(orders, budget=budget, ring=min(floor, budget))
        self._point_residents()

    def _point_residents(self) -> None:
        """From here on the parameters of resident groups point to their bytes: they need no acquire."""
        assert self._streamer is not None
        for group in self._weights.groups:
            address = self._streamer.resident(group.index)
            if address is not None:
                group.point_to(self._view(group, address))
                group.open = True
        self._passes.clear()
        self._pending.clear()
        self._settled = True

    def _is_resident(self, group: Group) -> bool:
        return self._settled and group.open and group not in self._opened

    def _close_streamer(self) -> None:
        if self._streamer is not None:
            self._streamer.close()
            self._streamer = None
        self._passes.clear()
        self._pending.clear()
        self._last = None
        self._began = False
        for group in self._weights.groups:
            group.open = group.rows_shown = False
            group.views.clear()
            if group.idle_view is not None:
                group.point_to(group.idle_view)
        self._opened.clear()

    def _sync(self) -> None:
        if self._on_host:
            self._slip_device.sync()
        else:
            torch.cuda.synchronize(self._device)

    def _view(self, group: Group, address: int) -> torch.Tensor:
        assert self._memory is not None
        begin = address - self._memory.data_ptr()
        with torch.inference_mode(False):
            view = group.view_of(self._memory[begin:begin + group.nbytes])
        group.views[address] = view
        return view

    def _shares(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor points into the streamer's memory."""
        if self._memory is None or tensor.layout != torch.strided or tensor.device != self._device:
            return False
        try:
            return 0 <= tensor.data_ptr() - self._memory.data_ptr() < self._memory.numel()
        except RuntimeError:  # a tensor of a subclass without memory of its own
            return False

    def _stream(self) -> _core.Stream:
        """The stream that the program uses now."""
        raw = 0 if self._on_host else torch._C._cuda_getCurrentRawStream(self._device.index)
        found = self._streams.get(raw)
        if found is None:
            found = (self._slip_device.stream("compute", blocking=False) if self._on_host
                     else self._slip_device.adopt(raw or LEGACY_STREAM, "compute"))
            self._streams[raw] = found
        return found

    # ---------------------------------------------------------------- calls of the model

    def _name(self, kind: tuple[int, int]) -> str:
        number, magnitude = kind
        low = 1 << max(magnitude - 1, 0)
        tokens = "" if magnitude == 0 else " 1 token" if magnitude == 1 else f" {low} to {2 * low - 1} tokens"
        return self._modules[number] + tokens

    def _begin_pass(self, number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._in_this_process()
        if torch.jit.is_tracing():
            raise Error("torch.jit.trace() of an offloaded model: it would record weights that are not on the device later; call "
                        "model.slip.restore() first")
        if not self._lock.enter():
            raise Error("another thread is inside a call of this offloaded model: one call at a time, since all share one ring")
        try:
            self._not_restoring()
            if torch.is_grad_enabled():
                _offload_hooks.refuse_training(self._model, args, kwargs)
            self._close_open_groups()
            if self._restart:
                self._start_again()
            kind = kind_of(number, args, kwargs)
            self._take_observations()
            if not self._settled and self._known and (
                    kind in self._known or len(self._known) >= MAX_UNSETTLED or self._all_known()):
                self._restart = True  # stays set if the next line raises
                self._settle()
                self._restart = False
            current = self._passes.get(kind) or self._new_pass(kind)
            current.calls += 1
            self._last = current
            self._begin_step(current.number)
            waiting = any(each.kind == kind for each in self._pending)
            wanted = current.calls in OBSERVED_CALLS if self._settled else current.observed == 0
            self._observation = Observation(kind, self._clock) if wanted and not waiting else None
            self._lock.owner = get_ident()
        except BaseException:
            self._lock.leave()
            raise

    def _begin_step(self, number: Optional[int]) -> None:
        """Begins a step of the streamer. `number`: of the pass; None: of a call that streams nothing. Such a call begins a
        step only if there is none, because any weight may be acquired in any step."""
        if number is None and self._began:
            return
        assert self._streamer is not None
        self._restart = True  # stays set if begin() raises the error of a load
        self._streamer.begin(number or 0)
        self._restart = False
        self._began = True

    def _end_pass(self) -> None:
        observation, self._observation = self._observation, None
        self._scopes.clear()
        try:
            if observation is not None:
                observation.end = self._clock.mark()
                self._pending.append(observation)
        finally:
            self._lock.leave()

    def _new_pass(self, kind: tuple[int, int]) -> Pass:
        uses = self._known.get(kind)
        if uses is None:  # assume the order of another kind of the same module, or that of the modules
            like = [each for each in self._known if each[0] == kind[0]]
            uses = [use._replace(picos=1) for use in self._known[like[-1]]] if like else in_order(self._subtree[kind[0]])
        made = Pass(kind, self._name(kind), streamed_uses(uses, self._is_resident))
        self._add(made)
        self._passes[kind] = made
        return made

    def _add(self, made: Pass) -> None:
        assert self._streamer is not None
        if made.uses:
            made.number = self._streamer.add_pass(made.name, for_streamer(made.uses))
        else:
            made.number = None

    def _all_known(self) -> bool:
        used = {id(use.group) for uses in self._known.values() for use in uses}
        return all(group.has_rows or id(group) in used for group in self._weights.groups)

    def _take_observations(self) -> None:
        """Evaluates the observed calls that have ended on the device. Waits for their end only before _settle()."""
        for observation in list(self._pending):
            if not self._settled:
                self._clock.wait(observation.end)
            elif not self._clock.reached(observation.end):
                continue
            self._pending.remove(observation)
            found = self._passes.get(observation.kind)
            if found is None:
                continue
            new = found.observe(observation)
            if self._settled and new:
                self._add(found)
            elif not self._settled:
                self._known[observation.kind] = found.uses

    def _fetch(self, group: Group) -> None:
        """Makes the parameters of the group point to its bytes, for work that is submitted to the current stream later."""
        if not self._lock.inside():
            self._fetch_outside(group)
            return
        observation = self._observation
        before = self._clock.mark() if observation is not None else None
        self._acquire(group)
        if observation is not None:
            observation.begin_use(group, before, self._clock.mark())

    def _acquire(self, group: Group) -> None:
        stream = self._stream()
        assert self._streamer is not None
        try:
            address = self._streamer.acquire(group.index, stream)
            if self._on_host:
                stream.sync()
        except OutOfMemory as error:
            self._no_place(group, error)
        except Error:
            self._restart = True
            raise
        view = group.views.get(address)
        if view is None:
            view = self._view(group, address)
        for param in group.params:
            param.data = view
        group.open, group.stream = True, stream
        self._opened.append(group)

    def _no_place(self, group: Group, error: OutOfMemory) -> NoReturn:
        """Raises the error for a group that has no space in the ring, because the model holds other weights. The next call
        begins with a ring that takes all memory."""
        held = [each for each in self._opened if not each.rows_shown]
        needed = self._small_bytes() + bytes_in((*held, group))
        names = ", ".join(f"'{each.name}'" for each in held[-4:])
        self._restart = True
        raise OutOfMemory(f"'{group.name}' does not fit beside the weights that the model uses at the same time ({names}): give a "
                          f"budget of at least {needed} bytes ({text_of(needed)})") from error

    def _show_rows(self, group: Group, ids: Any) -> None:
        """If a lookup reads a small part of the weight, lets the device read these rows from host memory."""
        if not isinstance(ids, torch.Tensor) or ids.numel() * ROWS_SHARE > group.shape[0]:
            return
        data = self._host.rows(group, ids)
        if data is None:
            return
        for param in group.params:
            param.data = data
        group.open = group.rows_shown = True
        self._opened.append(group)

    def _fetch_outside(self, group: Group) -> None:
        """An access outside of the model's forward. The weight stays acquired until the next call of the model, or until
        another such access needs its space in the ring."""
        if self._restored:
            return
        self._in_this_process()
        if not self._lock.enter():
            raise Error(f"'{group.name}' is accessed while another thread is inside a call of the offloaded model")
        try:
            self._not_restoring()
            if self._restart or self._streamer is None:
                self._start_again()
            self._begin_step(None)
            try:
                self._acquire(group)
            except OutOfMemory:
                if not self._opened:
                    raise
                self._restart = False
                self._close_open_groups()
                self._acquire(group)
            group.versions = group.versions_now()
        finally:
            self._lock.leave()

    def _release(self, mark: int) -> None:
        opened, stream, observation = self._opened, self._stream(), self._observation
        assert self._streamer is not None
        while len(opened) > mark:
            group = opened.pop()
            group.open, group.versions = False, None
            idle_view = group.idle_view
            for param in group.params:
                param.data = idle_view
            if group.rows_shown:
                group.rows_shown = False
                continue
            if observation is not None:
                observation.end_use(group)
            if group.stream is not stream and group.stream is not None:
                stream.wait(group.stream)  # work in that stream also uses the weight
            self._streamer.release(group.index, stream)

    def _close_open_groups(self) -> None:
        """Releases the weights of accesses outside of calls, and those of a call that an exception ended."""
        written = self._written()
        if self._opened:
            self._release(0)
        if written:
            self._restart = True  # the ring still has the written bytes
            raise Error(f"{written} was changed outside of a call. The change is lost, since the weights of an offloaded model are "
                        "only read: call model.slip.restore(), change it, and offload the model again")

    def _written(self) -> str:
        """The names of the weights that the program has changed after an access outside of calls."""
        return ", ".join(f"'{group.name}'" for group in self._opened
                         if group.versions is not None and group.versions != group.versions_now())

    # ---------------------------------------------------------------- refusals

    def _in_this_process(self) -> None:
        if os.getpid() != self._process:
            raise Error("the model was offloaded by the parent process: a forked child cannot use it; offload it in the child, or "
                        "start the child with multiprocessing's 'spawn'")

    def _not_restoring(self) -> None:
        if self._restoring:
            raise Error("an exception ended restore() of the offloaded model: call model.slip.restore() again")

    def _usable(self) -> None:
        self._in_this_process()
        if self._restored:
            raise Error("the model was restored: it is not offloaded any more")
        self._not_restoring()
        if self._streamer is None:
            raise Error("the last call of the offloaded model has failed, so there is no plan: the next call makes a new one")

    def _find(self, name: Optional[str]) -> Pass:
        if self._lock.inside():
            raise Error("predict() and verify() of the offloaded model cannot run inside a call of the model: call them after it")
        self._take_observations()
        if name is None:
            if self._last is None:
                raise Error("the model was not called yet, so the order and the times of its uses of weights are not known")
            return self._last
        for each in self._passes.values():
            if each.name == name:
                return each
        raise InvalidValue(f"no kind of call has the name '{name}'; there are: {', '.join(p.name for p in self._passes.values())}")
