"""Where the weights of an offloaded model are on the host: pinned memory, their own memory, or files. Each change of the
model adds its reverse to a list, which restore() runs, and offload() after an exception."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any, Callable, Iterable, Iterator, Optional

import torch

from . import _core
from ._errors import InvalidValue, OutOfMemory
from ._offload_groups import (FILE_NAMES, Group, PinnedBlocks, Progress, Weights, check_cast, check_unused, contiguous_stride, file_dtype,
                              idle_view_for, in_files, read_tensor, text_of)


Place = tuple[torch.nn.Module, str]  # a module, and a name in its _parameters


def put(places: list[Place], param: torch.nn.Parameter) -> None:
    """Sets a parameter of modules."""
    for module, name in places:
        module._parameters[name] = param
        if isinstance(module, torch.nn.RNNBase):
            setattr(module, name, param)  # nn.LSTM and nn.GRU also keep their parameters in a list


class HostWeights:
    """The bytes of the weights on the host, as sources for a WeightStreamer."""

    def __init__(self, model: torch.nn.Module, device: torch.device, slip_device: _core.Device, weights: Weights,
                 files: Optional[_core.WeightFiles], host_memory: Optional[int], compress: bool) -> None:
        self.model, self.device, self.slip_device, self.compress = model, device, slip_device, compress
        self.weights, self.files, self.host_memory = weights, files, host_memory
        self.on_host = device.type == "cpu"
        self.sources: list[Any] = []                # for the WeightStreamer, by group
        self.undo: list[Callable[[], None]] = []    # one function for each change, in the order of the changes
        self.probes: list[torch.Tensor] = []        # an empty tensor of each type in the model; see is_copy_or_conversion()
        self.pinned_bytes = 0

    def undo_all(self) -> None:
        """Undoes all changes, the last one first. A change leaves the list only after its function has returned. After an
        exception the caller can call this again, because the functions may run twice."""
        while self.undo:
            self.undo[-1]()
            self.undo.pop()
        self.sources.clear()
        for group in self.weights.groups:
            group.views.clear()
            group.host = group.original = group.rows = group.packed = None

    def read(self, group: Group) -> torch.Tensor:
        """The weight, in host memory."""
        if group.host is not None:
            return group.host
        if group.packed is not None:
            memory = torch.empty(group.nbytes, dtype=torch.uint8)
            group.packed.read(memory.data_ptr())
            return group.view_of(memory)
        assert self.files is not None and group.tensor is not None
        return read_tensor(self.files, group.tensor, *self.files.tensors()[group.tensor][:2])

    @contextlib.contextmanager
    def shown(self, groups: Iterable[Group]) -> Iterator[None]:
        """Inside, the parameters of the groups point to the weights in host memory: for state_dict()."""
        before = [(group, group.open, [param.data for param in group.params]) for group in dict.fromkeys(groups)]
        try:
            for group, _, _ in before:
                group.point_to(self.read(group))
                group.open = True
            yield
        finally:
            for group, was_open, datas in before:
                for param, data in zip(group.params, datas):
                    param.data = data
                group.open = was_open

    def rows(self, group: Group, ids: torch.Tensor) -> Optional[torch.Tensor]:
        """A tensor of the weight's shape that the device can read, with at least the rows `ids`. None: the weight must be
        loaded."""
        if group.rows is not None:
            return group.rows
        if group.host is not None or group.packed is not None or not self.on_host:
            return None
        # torch.empty() leaves the other rows without physical memory. The lookup itself reports ids that are out of range.
        assert self.files is not None and group.tensor is not None
        with torch.inference_mode(False):
            table = torch.empty(group.shape, dtype=group.dtype)
        wanted = [row for row in ids.unique().tolist() if 0 <= row < group.shape[0]]
        self.files.read_rows(group.tensor, wanted, table.data_ptr())
        return table

    def prepare(self, names: Any) -> None:
        """Moves the weights to the host, and fills `sources`. After an exception the caller calls undo_all()."""
        weights = self.weights
        progress = Progress("compressing weights" if self.compress else "reading weights" if self.files else "pinning weights",
                            weights.total)
        try:
            if self.files:
                self._read_files(names, progress)
            else:
                self._move_from_memory(progress)
        finally:
            progress.end()
        for kind in {p.dtype for p in self.model.parameters()} | {torch.float32}:
            self.probes.append(torch.empty(0, dtype=kind, device=self.device))

    def _small(self) -> list[tuple[torch.nn.Parameter, list[Place]]]:
        """The small parameters, each with all its places: a tied parameter has several."""
        found: dict[int, tuple[torch.nn.Parameter, list[Place]]] = {}
        for module, name, param in self.weights.small:
            found.setdefault(id(param), (param, []))[1].append((module, name))
        return list(found.values())

    def _keep_small(self, param: torch.nn.Parameter, places: list[Place], data: torch.Tensor) -> None:
        """Makes `data` the memory of a small parameter. A parameter on the meta device is replaced by a new one, because
        torch cannot give it memory."""
        if param.device.type == "meta":
            made = torch.nn.Parameter(data, requires_grad=False)
            self.undo.append(lambda: put(places, param))
            put(places, made)
            return
        original, needed = param.data, param.requires_grad

        def undo() -> None:
            param.data = original if original.device == data.device else param.data.to(original.device)
            param.requires_grad_(needed)
        self.undo.append(undo)
        param.data = data
        param.requires_grad_(False)

    def _keep_buffer(self, module: torch.nn.Module, name: str, buffer: torch.Tensor, data: torch.Tensor) -> None:
        def undo() -> None:
            now = module._buffers.get(name)
            if now is not None:
                module._buffers[name] = buffer if now is data and buffer.device == now.device else now.to(buffer.device)
        self.undo.append(undo)
        module._buffers[name] = data

    def _move_from_memory(self, progress: Progress) -> None:
        """For weights that are in memory. If the device is a GPU, they move to pinned memory; on cpu they keep their own."""
        moved: dict[int, torch.Tensor] = {}
        for param, places in self._small():
            self._keep_small(param, places, param.data.to(self.device))
        for module, name, buffer in self.weights.buffers:
            if id(buffer) not in moved:
                moved[id(buffer)] = buffer.to(self.device)
            self._keep_buffer(module, name, buffer, moved[id(buffer)])
        sizes = [] if self.compress else [group.nbytes for group in self.weights.groups]
        blocks = PinnedBlocks(self.slip_device, sizes)
        for group in self.weights.groups:
            source = group.params[0].data
            in_place = source.stride() == tuple(group.stride) and source.device.type == "cpu"
            if self.compress:
                self._compress(group, source if in_place else
                           torch.empty_strided(group.shape, group.stride, dtype=group.dtype).copy_(source))
            elif self.on_host and in_place:
                group.original = group.host = source
                flat = source.as_strided((source.numel(),), (1,)).view(torch.uint8)
                self.sources.append(flat.numpy())
            elif self.on_host:
                group.host = torch.empty_strided(group.shape, group.stride, dtype=group.dtype)
                group.host.copy_(source)
                self.sources.append(group.host.as_strided((source.numel(),), (1,)).view(torch.uint8).numpy())
            else:
                pinned, memory = blocks.take()
                group.host = group.view_of(memory)
                group.host.copy_(source)
                self.sources.append(pinned)
            self._replace(group)
            progress.add(group.nbytes)
        self.pinned_bytes += blocks.bytes

    def _compress(self, group: Group, data: torch.Tensor) -> None:
        """Compresses the bytes of a group into pinned memory, which becomes its source."""
        flat = data.as_strided((data.numel(),), (1,)).view(torch.uint8).numpy()
        group.packed = _core.CompressedWeights(self.slip_device, flat, FILE_NAMES.get(group.dtype, "U8"))
        self.pinned_bytes += group.packed.compressed_nbytes
        self.sources.append(group.packed)

    def _read_files(self, names: Any, progress: Progress) -> None:
        """For weights in files. If the device is a GPU, as many as host_memory allows are read into pinned memory. The others
        stay in the files, and on cpu all do."""
        assert self.files is not None
        files, weights, tensors = self.files, self.weights, self.files.tensors()
        missing: list[str] = []
        for param, places in self._small():
            found = next((each for place in places for each in names(*place) if each in tensors), None)
            if found is not None:
                data = read_tensor(files, found, *tensors[found][:2])
                if data.shape != param.shape:
                    raise InvalidValue(f"tensor '{found}' has the shape {list(data.shape)} in the files, but {list(param.shape)} "
                                       "in the model")
                check_cast(found, tensors[found][0], param.dtype)
                self._keep_small(param, places, data.to(param.dtype).to(self.device))
            elif param.device.type == "meta":
                missing.append(next(iter(names(*places[0]))))
            else:
                self._keep_small(param, places, param.data.to(self.device))
        for module, name, buffer in weights.buffers:
            found = next((each for each in names(module, name) if each in tensors), None)
            if found is not None:
                data = read_tensor(files, found, *tensors[found][:2]).to(buffer.dtype)
                self._keep_buffer(module, name, buffer, data.to(self.device))
            elif buffer.device.type == "meta":
                missing.append(next(iter(names(module, name))))
            else:
                self._keep_buffer(module, name, buffer, buffer.to(self.device))
        for group in weights.groups:
            if not in_files(group, files, tensors, lambda each: (n for place in each.places for n in names(*place))):
                missing.append(group.name)
        if missing:
            some = ", ".join(missing[:4]) + (", ..." if len(missing) > 4 else "")
            raise InvalidValue(f"{len(missing)} weights of the model are not in the files: {some}")
        places = [place for group in weights.groups for place in group.places]
        places += [(module, name) for module, name, _ in (*weights.small, *weights.buffers)]
        check_unused(tensors, {each for place in places for each in names(*place)},
                     getattr(self.model, "_keys_to_ignore_on_load_unexpected", None) or ())
        kept = self._kept(tensors)
        sizes = [group.nbytes for group, keep in zip(weights.groups, kept) if keep and not self.compress]
        blocks = PinnedBlocks(self.slip_device, sizes)
        for group, keep in zip(weights.groups, kept):
            if not keep:
                self.sources.append((files, [group.tensor]))
            elif self.compress:
                kind, shape = tensors[group.tensor][:2]
                self._compress(group, torch.empty_strided(group.shape, group.stride, dtype=group.dtype).copy_(
                    read_tensor(files, group.tensor, kind, shape)))
            else:
                pinned, memory = blocks.take()
                group.host = group.view_of(memory)
                kind, shape, size = tensors[group.tensor][:3]
                if file_dtype(kind) == group.dtype and group.host.is_contiguous():
                    files.read(group.tensor, group.host.data_ptr(), size)
                else:
                    group.host.copy_(read_tensor(files, group.tensor, kind, shape))
                self.sources.append(pinned)
            self._replace(group)
            progress.add(group.nbytes)
        self.pinned_bytes += blocks.bytes

    def _kept(self, tensors: dict[str, Any]) -> list[bool]:
        """By group: whether it is kept in host memory. The others are read from the files at each load, without conversion,
        so a group whose type or layout differs from that of the files must be kept."""
        groups = self.weights.groups
        same = [file_dtype(tensors[group.tensor][0]) == group.dtype and group.stride == contiguous_stride(group.shape)
                for group in groups if group.tensor is not None]
        converted = [group for group, each in zip(groups, same) if not each]
        needed = sum(group.nbytes for group in converted)
        if converted and (self.host_memory is not None or self.on_host):
            first = converted[0]
            text = (f"{len(converted)} weights have another type or layout in the files, such as '{first.name}' "
                    f"({tensors[first.tensor or ''][0]} in the files, {first.dtype} in the model): they are converted and kept, in "
                    f"{text_of(needed)} of host memory")
            if self.host_memory is not None and needed > self.host_memory:
                raise InvalidValue(f"{text}, but host_memory is {text_of(self.host_memory)}: build the model with the type of the "
                                   "files, or allow more")
            if self.on_host:
                warnings.warn(f"slipstream: {text}. To leave them in the files, build the model with the type of the files",
                              stacklevel=2)
        left = None if self.host_memory is None else self.host_memory - needed
        kept = []
        for group, each in zip(groups, same):
            keep = not each or (not self.on_host and (left is None or group.nbytes <= left))
            if keep and each and left is not None:
                left -= group.nbytes
            kept.append(keep)
        return kept

    def _replace(self, group: Group) -> None:
        """From here on the parameters of the group point to its bytes only while it is acquired. The undo function is listed
        before any change. `idle_view` is set after that: closing the streamer points each group that has one to it."""
        idle_view = idle_view_for(group, self.device)
        if group.origin.type != "meta":
            self.undo.append(lambda: self._bring_back(group))
            group.idle_view = idle_view
            group.point_to(idle_view)
            for param in group.params:
                param.requires_grad_(False)
            return
        olds = [(module, name, module._parameters[name]) for module, name in group.places]
        made = {id(old): torch.nn.Parameter(idle_view, requires_grad=False) for _, _, old in olds}

        def undo() -> None:
            for module, name, old in olds:
                put([(module, name)], old)
        self.undo.append(undo)
        for module, name, old in olds:
            put([(module, name)], made[id(old)])
        group.params = list(made.values())
        group.idle_view = idle_view

    def _bring_back(self, group: Group) -> None:
        """Gives the parameters of the group memory of their own again. The copy on the host stays until all groups have
        theirs, so no weight is lost if memory runs out."""
        data = group.original
        if data is None:
            try:
                data = torch.empty_strided(group.shape, group.stride, dtype=group.dtype, device=group.origin)
            except RuntimeError as error:
                raise OutOfMemory(f"cannot allocate {text_of(group.nbytes)} on {group.origin} for '{group.name}': "
                                  f"{error}; free some, then call model.slip.restore() again: no weight is lost") from error
            data.copy_(self.read(group))
        for param, needed in zip(group.params, group.requires_grad):
            param.data = data
            param.requires_grad_(needed)
        group.idle_view = None
