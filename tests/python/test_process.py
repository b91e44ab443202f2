"""Ctrl-C, fork and exit of the interpreter, with live streams and callbacks. Each case is a process of its own."""

import os
import signal
import textwrap
import unittest

import slipstream as slip
from support import LIMIT, Gate, run_script

HEAD = """
import atexit, os, signal, sys, threading, time
sys.path.insert(0, {folder!r})
import slipstream as slip
from support import LIMIT, Gate
""".format(folder=os.path.dirname(os.path.abspath(__file__)))


def script(text):
    return HEAD + textwrap.dedent(text)


class Processes(unittest.TestCase):
    def ends(self, text, status=0, output=None):
        code, out, errors = run_script(script(text))
        self.assertEqual(code, status, out + errors)
        if output is not None:
            self.assertEqual(out.strip(), output, errors)
        return errors


class Interrupts(Processes):
    # Sends SIGINT when the main thread is inside of wait_here(), which only waits.
    SENDER = """
    def wait_here(wait):
        wait()

    def send():
        main = threading.main_thread()
        while sys._current_frames()[main.ident].f_code is not wait_here.__code__:
            os.sched_yield()
        signal.pthread_kill(main.ident, signal.SIGINT)

    def interrupted(wait):
        thread = threading.Thread(target=send)
        thread.start()
        try:
            wait_here(wait)
            return False
        except KeyboardInterrupt:
            return True
        finally:
            thread.join()
    """

    def test_ctrl_c_ends_every_wait_and_the_stream_goes_on(self):
        self.ends(self.SENDER + """
    for name in ("cpu", "sim:h200"):
        device = slip.Device(name)
        stream, gate, ran = device.stream(blocking=False), Gate(device), []
        gate.hold(stream)
        stream.host(lambda: ran.append(1))
        event = stream.record()
        for wait in (stream.sync, device.sync, event.sync):
            assert interrupted(wait), wait
        assert ran == []
        gate.open()
        stream.sync(LIMIT)
        assert ran == [1]
    """)

    def test_ctrl_c_in_a_callback_that_the_waiting_thread_runs(self):
        # One op at a time: the waiting thread runs the op itself.
        self.ends(self.SENDER + """
    device = slip.Device("cpu", policy="single")
    stream = device.stream(blocking=False)

    def wait_for_the_signal():
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        for _ in range(1000):
            os.sched_yield()

    stream.host(wait_for_the_signal)
    try:
        stream.sync(LIMIT)
        print("no interrupt")
    except KeyboardInterrupt:
        print("interrupted")
    """, output="interrupted")


class Forks(unittest.TestCase):
    def test_the_child_of_a_fork(self):
        device = slip.Device("cpu")
        stream, gate, ran = device.stream(blocking=False), Gate(device), []
        stream.host(lambda: ran.append(0))
        stream.sync(LIMIT)   # threads of the device exist
        gate.hold(stream)
        stream.host(lambda: ran.append(1))
        child = os.fork()
        if child == 0:
            status = 1
            try:
                signal.alarm(int(LIMIT))
                try:
                    stream.sync(1)
                except slip.Error as error:
                    assert error.code == "invalid device" and "fork" in str(error), error
                own = slip.Device("cpu")
                with own.stream() as own_stream:
                    out = own.alloc(4, "i4", kind="pinned")
                    own_stream.launch(lambda array: array.fill(7), writes=[out])
                assert memoryview(out)[3] == 7
                own.close(force=True)
                device.close(force=True)
                status = 0
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        self.assertEqual(os.waitstatus_to_exitcode(status), 0)
        gate.open()
        stream.sync(LIMIT)
        self.assertEqual(ran, [0, 1])

    def test_a_forked_child_exits_through_the_interpreter(self):
        code, out, errors = run_script(script("""
    device = slip.Device("cpu")
    stream, gate = device.stream(blocking=False), Gate(device)
    started = threading.Event()
    other = device.stream(blocking=False)
    other.host(lambda: (started.set(), hold.wait(LIMIT)))   # a callback runs while the process forks
    hold = threading.Event()
    assert started.wait(LIMIT)
    if os.fork() == 0:
        print("child")
        sys.exit(0)
    _, status = os.wait()
    hold.set()
    other.sync(LIMIT)
    print("parent", os.waitstatus_to_exitcode(status))
    """))
        self.assertEqual((code, out.split()), (0, ["child", "parent", "0"]), errors)


class Exits(Processes):
    def test_with_work_that_never_ends(self):
        self.ends("""
    device = slip.Device("cpu")
    stream, gate = device.stream(blocking=False), Gate(device)
    memory = device.alloc(8)
    gate.hold(stream)
    stream.launch(lambda out: print("ran"), writes=[memory])
    stream.host(lambda: print("ran"))
    """, output="")

    def test_with_many_callbacks_queued(self):
        for device in ("cpu", "sim:h200"):
            self.ends(f"""
    device = slip.Device("{device}")
    streams = [device.stream(blocking=False) for _ in range(4)]
    memory = device.alloc(8)
    for _ in range(500):
        for stream in streams:
            stream.launch(lambda out: None, writes=[memory])
            stream.host(lambda: None)
    with streams[0].capture() as plan:
        streams[0].launch(lambda out: None, writes=[memory])
    """)

    def test_a_running_callback_ends_first(self):
        self.ends("""
    device = slip.Device("cpu")
    stream = device.stream(blocking=False)
    started, exiting = threading.Event(), threading.Event()

    def run():
        started.set()
        assert exiting.wait(LIMIT)
        print("done")

    stream.host(run)
    stream.host(lambda: print("not run"))
    assert started.wait(LIMIT)
    atexit.register(exiting.set)
    """, output="done")

    def test_a_callback_that_does_not_end_is_named(self):
        errors = self.ends("""
    slip._core._set_exit_limit(0.05)
    device = slip.Device("cpu")
    stream, started = device.stream(blocking=False), threading.Event()
    stream.host(lambda: (started.set(), threading.Event().wait(LIMIT)))
    assert started.wait(LIMIT)
    """, status=1)
        self.assertIn("a Python function of an op still runs", errors)

    def test_with_an_error_in_a_stream_and_observers(self):
        self.ends("""
    device = slip.Device("cpu")
    stream = device.stream(blocking=False)
    trace, check = slip.trace(), slip.check()
    stream.host(lambda: 1 / 0)
    stream.host(lambda: None)
    memory = device.alloc(8)
    view = memoryview(device.alloc(8, kind="pinned"))
    """)

    def test_daemon_threads_that_wait(self):
        self.ends("""
    device = slip.Device("cpu")
    stream, gate, waiting = device.stream(blocking=False), Gate(device), threading.Event()
    gate.hold(stream)

    def wait():
        waiting.set()
        stream.sync()

    threading.Thread(target=wait, daemon=True).start()
    assert waiting.wait(LIMIT)
    """)


if __name__ == "__main__":
    unittest.main()
