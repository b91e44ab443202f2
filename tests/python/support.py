"""Helpers of the tests of the Python package."""

import os
import subprocess
import sys
import time

import slipstream as slip

LIMIT = 60.0  # seconds: a wait that would hang fails instead

# Round numbers, so that times can be computed by hand: 1 GB/s is 1 byte a nanosecond.
SIM = """sim:{"name": "plain", "memory": "1 GB", "queues": 8,
  "compute": {"flops": "1 TFLOP/s", "bandwidth": "1 TB/s", "launch": "0 us", "copy_slowdown_ppm": 0},
  "copies": {"engines": 2, "in": "1 GB/s", "out": "1 GB/s", "both": "2 GB/s", "pageable": "1 GB/s", "latency": "0 us"},
  "host": {"launch": "0 us", "copy": "0 us", "fill": "0 us", "function": "0 us", "record": "0 us", "timed_record": "0 us",
           "wait": "0 us", "value": "0 us", "query": "1 ps", "sync": "0 us", "callback": "0 us"}}"""
US = 1_000_000  # picoseconds


class Gate:
    """Holds streams until it is opened, so that a test decides what is pending."""

    def __init__(self, device):
        self.flag = device.alloc(1, "u4", kind="pinned", name="gate")
        self.word = memoryview(self.flag)
        self.word[0] = 0

    def hold(self, stream):
        stream.wait_value(self.flag, 1, "gate")

    def open(self):
        self.word[0] = 1

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        self.open()


def eventually(condition):
    """Whether the condition holds before the limit. A worker may give a function back just after its op is done."""
    end = time.monotonic() + LIMIT
    while not condition():
        if time.monotonic() > end:
            return False
        os.sched_yield()
    return True


def run_script(text, **options):
    """Runs a Python program with this package; (exit status, output, errors)."""
    done = subprocess.run([sys.executable, "-B", "-c", text], capture_output=True, text=True, timeout=LIMIT, check=False,
                          **options)
    return done.returncode, done.stdout, done.stderr


def error_of(call, kind=slip.Error):
    """The exception that the call raises."""
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__} was raised")
