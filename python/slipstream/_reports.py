"""The results of checks, proofs and traces, as plain data. Times are integers in picoseconds (`_ps`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional


@dataclass(frozen=True)
class Place:
    """An op and the source line that issued it. Stream 0 is the host. `stream_name` is empty if the stream has no name."""

    stream: int
    stream_name: str
    position: int
    name: str
    file: str
    line: int
    writes: bool = False


@dataclass(frozen=True)
class Race:
    """Two accesses to the same bytes that no dependency orders; at least one writes. `times`: how often it was
    observed for the same two source lines."""

    first: Place
    second: Place
    buffer: str
    offset: int
    bytes: int
    times: int


@dataclass(frozen=True)
class Fix:
    """A missing wait, which belongs after the op `after` and before the op `before`: `before` must wait for `after`."""

    after: Place
    before: Place


@dataclass(frozen=True)
class RaceReport:
    """Races with the waits that would order them. `opaque`: ops without declared ranges. `dropped`: records that are missing
    from the trace."""

    races: list[Race]
    fixes: list[Fix]
    ops: int
    opaque: int
    dropped: int
    text: str = field(repr=False)

    @property
    def clean(self) -> bool:
        """No race, and no record is missing."""
        return not self.races and self.dropped == 0

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class SuperfluousWait:
    """A wait of `before` for `after` that can be removed. `implied`: other waits order the same ops. `cost_ps`: how much
    shorter the run would be; None: not computed."""

    after: Place
    before: Place
    file: str
    line: int
    times: int
    implied: bool
    cost_ps: Optional[int]


@dataclass(frozen=True)
class FalseDependency:
    """An op, `held`, that waited for an unrelated op, `by`. `queue`: it was behind `by` in a shared hardware queue;
    otherwise the legacy stream's rule made it wait."""

    held: Place
    by: Place
    queue: bool
    times: int
    cost_ps: Optional[int]


@dataclass(frozen=True)
class CheckReport:
    """All findings in a trace. `deadlocks`: cycles of waits, each as a list of (op, what it waits for)."""

    races: RaceReport
    superfluous: list[SuperfluousWait]
    false_dependencies: list[FalseDependency]
    deadlocks: list[list[tuple[Place, str]]]
    clean: bool
    text: str = field(repr=False)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class PlanRace:
    """Two ops of a plan, by index, that access the same bytes and that no dependency orders."""

    first: int
    second: int
    first_writes: bool
    second_writes: bool
    buffer: str
    offset: int
    bytes: int


@dataclass(frozen=True)
class Verification:
    """The proof of a plan, or the reasons why there is none. Ops are indices; a wait is (op, the op that it waits for)."""

    verdict: str
    races: list[PlanRace]
    missing: list[tuple[int, int]]
    superfluous: list[tuple[int, int]]
    cycle: list[int]
    unknown: list[int]
    text: str = field(repr=False)

    @property
    def proven(self) -> bool:
        """True if no launch of the plan can have a race or a deadlock."""
        return self.verdict == "proven"

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class PlanOp:
    """One op of a plan. `waits` are indices of ops of other streams. `stream_name` is empty if the stream has no name."""

    stream: int
    stream_name: str
    kind: str
    engine: str
    name: str
    file: str
    line: int
    waits: list[int]
    opaque: bool


@dataclass(frozen=True)
class Span:
    """One op of a trace. `started_ps` and `ended_ps` are None if it had not run when the trace ended.

    `reads` and `writes` are (buffer name, offset, bytes).
    """

    name: str
    kind: str
    engine: str
    device: int
    stream: int
    stream_name: str
    file: str
    line: int
    queued_ps: int
    started_ps: Optional[int]
    ended_ps: Optional[int]
    reads: list[tuple[str, int, int]]
    writes: list[tuple[str, int, int]]

    @property
    def duration_ps(self) -> int:
        """How long it ran; 0 if it did not run."""
        return (self.ended_ps or 0) - (self.started_ps or 0)


@dataclass(frozen=True)
class Stats:
    """The times of a trace by their use. `critical_path`: for each op on it (name, the reason why it began no earlier)."""

    ops: int
    total_ps: int
    idle_ps: int
    busy_ps: dict[str, int]
    copy_ps: int
    overlapped_ps: int
    exposed_ps: int
    communication_ps: int
    communication_exposed_ps: int
    bound_ps: int
    critical_path: list[tuple[str, str]]

    @property
    def overlap_percent(self) -> float:
        """The percentage of the time of copies in which kernels ran, too."""
        return 100.0 * self.overlapped_ps / self.copy_ps if self.copy_ps else 0.0


def race_report(found: dict[str, Any]) -> RaceReport:
    races = [Race(**{**race, "first": Place(**race["first"]), "second": Place(**race["second"])}) for race in found["races"]]
    fixes = [Fix(Place(**fix["after"]), Place(**fix["before"])) for fix in found["fixes"]]
    return RaceReport(**{**found, "races": races, "fixes": fixes})


def check_report(found: dict[str, Any]) -> CheckReport:
    def with_places(cls: Any, rows: list[dict[str, Any]], *keys: str) -> list[Any]:
        return [cls(**{**row, **{key: Place(**row[key]) for key in keys}}) for row in rows]

    return CheckReport(
        races=race_report(found["races"]),
        superfluous=with_places(SuperfluousWait, found["superfluous"], "after", "before"),
        false_dependencies=with_places(FalseDependency, found["false_dependencies"], "held", "by"),
        deadlocks=[[(Place(**place), because) for place, because in cycle] for cycle in found["deadlocks"]],
        clean=found["clean"],
        text=found["text"],
    )


def verification(found: dict[str, Any]) -> Verification:
    return Verification(**{**found, "races": [PlanRace(**race) for race in found["races"]]})
