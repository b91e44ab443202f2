"""Recording, checking, proving and predicting."""

from __future__ import annotations

import contextlib
import os
import tempfile
from types import TracebackType
from typing import Any, Mapping, Optional, Union

from . import _core, _reports
from ._core import Plan, Stream
from ._torch_profile import TorchProfile

Path = Union[str, "os.PathLike[str]"]


class Trace:
    """The ops of streams, with their times: recorded (trace()), read from a file (read_trace()) or predicted."""

    def __init__(self, data: Optional[_core.TraceData] = None) -> None:
        self._data = data
        self._recorder: Optional[_core.TraceRecorder] = None if data else _core.TraceRecorder()

    def __enter__(self) -> Trace:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], value: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends the recording. A second call does nothing."""
        if self._recorder is not None:
            self._recorder.stop()
            self._data, self._recorder = self._recorder.data(), None

    @property
    def data(self) -> _core.TraceData:
        """The recorded data so far."""
        if self._recorder is not None:
            return self._recorder.data()
        assert self._data is not None
        return self._data

    @property
    def spans(self) -> list[_reports.Span]:
        """The ops, in the order of submission."""
        return [_reports.Span(**span) for span in self.data.spans()]

    def stats(self) -> _reports.Stats:
        """Overlap, idle time, busy time by engine, and the critical path."""
        return _reports.Stats(**self.data.stats())

    def check(self) -> _reports.CheckReport:
        """Races with their fixes, superfluous waits, false dependencies, deadlocks."""
        return _reports.check_report(self.data.check())

    def save(self, path: Path) -> None:
        """Writes a Chrome trace: `slip view`, `slip check`, `slip stats` and Perfetto read it."""
        self.data.save(os.fspath(path))

    def html(self, path: Path, *, title: str = "", prediction: Optional[Trace] = None) -> None:
        """Writes the timeline as one HTML page; a prediction is shown below the run."""
        self.data.html(os.fspath(path), title, prediction.data if prediction else None)


def trace() -> Trace:
    """`with trace() as run:` records all streams of the process."""
    return Trace()


def read_trace(path: Path) -> Trace:
    """Reads a trace that Slipstream, PyTorch or another program wrote."""
    return Trace(_core.TraceData.read(os.fspath(path)))


class Check:
    """Checks the running program for races, from its construction to stop()."""

    def __init__(self) -> None:
        self._checker = _core.RaceChecker()

    def __enter__(self) -> Check:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], value: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends the check; report() stays available."""
        self._checker.stop()

    def report(self) -> _reports.RaceReport:
        """The races observed so far."""
        return _reports.race_report(self._checker.report())


def check() -> Check:
    """`with check() as races:` checks all streams of the process; then `races.report()`."""
    return Check()


class Watch(Trace):
    """See watch()."""

    def __init__(self, path: Optional[Path], html: Optional[Path], streams: Mapping[str, Any], profile: bool) -> None:
        super().__init__()
        self._path, self._html = path, html
        self.streams: dict[str, Stream] = {}
        self._profile: Optional[TorchProfile] = None
        try:
            for name, stream in streams.items():
                self.streams[name] = Stream.adopt(stream, name=name)
            if streams or profile:
                self._profile = TorchProfile(streams)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends the recording. A second call does nothing."""
        super().stop()
        if self._profile is None:
            return
        profile, self._profile = self._profile, None
        profile.stop()
        with tempfile.TemporaryDirectory(prefix="slipstream-") as folder:
            path = os.path.join(folder, "profile.json")
            profile.write(path)
            self._data = _core.TraceData.read(path)

    def __exit__(self, kind: Optional[type[BaseException]], value: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        with contextlib.ExitStack() as at_end:  # also if a stream has failed, so that sync() raises
            at_end.callback(self.stop)
            for stream in self.streams.values():
                at_end.callback(stream.close)
            if kind is None:
                for stream in self.streams.values():
                    stream.sync()
        if self._path is not None:
            self.save(self._path)
        if self._html is not None:
            self.html(self._html)


def watch(path: Optional[Path] = None, *, html: Optional[Path] = None, streams: Optional[Mapping[str, Any]] = None,
          torch: bool = False) -> Watch:
    """`with watch("run.json", html="run.html") as run:` records, and writes the files at the end.

    `streams` maps names to torch.cuda.Streams. Then torch.profiler records all kernels and copies of the process, those
    of PyTorch too, and the timeline shows each stream under its name. `run.streams[name]` is a slipstream.Stream for the
    same CUDA stream. `torch=True` records PyTorch without naming streams, on a CPU too. The recording of a PyTorch program
    has no declared reads and writes, so check() cannot find its races.
    """
    return Watch(path, html, streams or {}, torch)


class Prediction:
    """A plan in virtual time: `time_ps` from the first start to the last end, and the simulated `trace`."""

    def __init__(self, time_ps: int, trace: Trace) -> None:
        self.time_ps = time_ps
        self.trace = trace

    def __repr__(self) -> str:
        return f"<slipstream.Prediction {self.time_ps / 1e6:.3f} us>"


def _plan(given: Any) -> Plan:
    if not isinstance(given, Plan):
        raise TypeError(f"expected a Plan, which stream.capture() makes, not {type(given).__name__}")
    return given


def verify(plan: Plan) -> _reports.Verification:
    """Proves that no launch of the plan has a race or a deadlock, or says why not."""
    return _reports.verification(_plan(plan)._verify())


def predict(plan: Plan, device: str = "sim:h200") -> Prediction:
    """Simulates the plan on a sim device. No function runs, so the times follow from `bytes`, `flops` or `time_ps` of each
    launch."""
    time_ps, data = _plan(plan)._predict(device)
    return Prediction(time_ps, Trace(data))


def ops(plan: Plan) -> list[_reports.PlanOp]:
    """The ops of a plan."""
    return [_reports.PlanOp(**op) for op in _plan(plan)._nodes()]
