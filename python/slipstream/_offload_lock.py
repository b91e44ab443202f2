"""The lock of an offloaded model: one call at a time, and between the calls reports by any thread."""

from __future__ import annotations

import contextlib
from threading import Lock, get_ident
from typing import Iterator

from ._errors import Error

MAX_WAIT = 60  # seconds


class CallLock:
    """All use of the streamer needs this lock. A report waits for a call in another thread, and a call waits for a report,
    both up to MAX_WAIT. A call does not wait for another call: enter() returns False."""

    def __init__(self) -> None:
        self.calls = Lock()    # held by a call, by an access outside of calls, by restore() or by a report
        self.reports = Lock()  # held by a report that waits for `calls` or holds it, so that no new call can overtake it
        self.owner = 0         # the id of the thread inside a call; 0: none

    def inside(self) -> bool:
        """Whether this thread is inside a call."""
        return self.owner == get_ident()

    def enter(self) -> bool:
        """Takes the lock for a call, an access outside of calls or restore(). False: another thread holds it for one."""
        self._take_reports()
        try:
            return self.calls.acquire(blocking=False)
        finally:
            self.reports.release()

    def leave(self) -> None:
        self.owner = 0
        self.calls.release()

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Holds the lock for a report. A report inside a call needs no lock: its thread has it."""
        if self.inside():
            yield
            return
        self._take_reports()
        try:
            if not self.calls.acquire(timeout=MAX_WAIT):
                raise Error(f"a call of the offloaded model, in another thread, has not ended in {MAX_WAIT} s: try again later")
            try:
                yield
            finally:
                self.calls.release()
        finally:
            self.reports.release()

    def _take_reports(self) -> None:
        """Takes the lock `reports`; the caller releases it."""
        if not self.reports.acquire(timeout=MAX_WAIT):
            raise Error(f"a report of the offloaded model, in another thread, has not ended in {MAX_WAIT} s")
