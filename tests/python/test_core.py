"""Devices, streams, events, buffers, kernels, plans and errors."""

import gc
import threading
import unittest
import weakref

import numpy as np

import slipstream as slip
from support import LIMIT, SIM, US, Gate, error_of, eventually


def add(x, y, out):
    out[:] = x + y


class Streams(unittest.TestCase):
    def test_copies_kernels_and_events_on_every_host_device(self):
        for name in ("cpu", "sim:h200"):
            with self.subTest(name), slip.Device(name) as device:
                load = device.stream("load", blocking=False)
                compute = device.stream("compute", blocking=False)
                weights = device.alloc(1000, "f4", kind="pinned", name="weights")
                slot, x, y = (device.alloc(1000, "f4", name=each) for each in ("slot", "x", "y"))
                with weights.host_write() as array:
                    array[:] = 1.5
                load.copy(slot, weights)
                loaded = load.record()
                compute.fill(x, 0)
                compute.wait(loaded)
                compute.launch(add, reads=[x, slot], writes=[y], flops=1000)
                compute.copy(weights[10:], y[10:])
                compute.sync(LIMIT)
                self.assertTrue(loaded.query())
                with weights.host_read() as array:
                    self.assertEqual(array.dtype, np.float32)
                    self.assertEqual(array.sum(), 1500)
                    with self.assertRaises(ValueError):
                        array[0] = 1   # read-only

    def test_scalars_keep_their_type(self):
        seen = []
        with slip.Device("cpu") as device, device.stream() as stream:
            out = device.alloc(4, "i4")
            stream.launch(lambda array, *scalars: seen.extend(scalars), writes=[out], scalars=[-3, 2.5, 2**40])
            stream.sync(LIMIT)
        self.assertEqual(seen, [-3, 2.5, 2**40])
        self.assertEqual([type(each) for each in seen], [int, float, int])

    def test_a_stream_waits_for_an_event_and_for_a_stream(self):
        order = []
        with slip.Device("cpu") as device, Gate(device) as gate:
            first, second, third = (device.stream(blocking=False) for _ in range(3))
            gate.hold(first)
            first.host(lambda: order.append(1))
            second.wait(first.record())
            second.host(lambda: order.append(2))
            third.wait(second)
            third.host(lambda: order.append(3))
            self.assertFalse(third.query())
            gate.open()
            third.sync(LIMIT)
        self.assertEqual(order, [1, 2, 3])

    def test_two_kernels_run_at_once_and_share_the_interpreter(self):
        meeting = threading.Barrier(2)
        with slip.Device("cpu", workers=2) as device:
            a, b = device.stream(blocking=False), device.stream(blocking=False)
            for stream in (a, b):
                stream.launch(lambda out: meeting.wait(LIMIT), writes=[device.alloc(8)], name="meet")
            device.sync(LIMIT)
        self.assertFalse(meeting.broken)

    def test_waits_with_a_limit_raise_timeout(self):
        with slip.Device("cpu") as device, Gate(device) as gate:
            stream = device.stream(blocking=False)
            gate.hold(stream)
            event = stream.record()
            for wait in (stream.sync, event.sync, device.sync):
                error = error_of(lambda: wait(0.01), TimeoutError)
                self.assertIsInstance(error, slip.Timeout)
                self.assertEqual(error.code, "timeout")
            gate.open()
            event.sync(LIMIT)
            stream.sync()

    def test_names_priorities_and_ids(self):
        with slip.Device("cpu", label="host") as device:
            stream = device.stream("loads", blocking=False, priority=-1)
            self.assertEqual((stream.name, stream.blocking, stream.priority), ("loads", False, -1))
            self.assertNotEqual(stream.id, device.stream().id)
            self.assertIn("loads", repr(stream))
            self.assertIn("host", repr(device))
            self.assertEqual(stream.native, 0)

    def test_stream_ordered_memory(self):
        with slip.Device("cpu") as device, device.stream(blocking=False) as stream:
            pinned = device.alloc(16, "i4", kind="pinned")
            memory = stream.alloc(16, "i4", name="temporary")
            stream.fill(memory, 1)
            stream.copy(pinned, memory)
            stream.free(memory)
            self.assertTrue(memory.closed)
            stream.sync(LIMIT)
            with pinned.host_read() as array:
                self.assertEqual(array[5], 0x01010101)

    def test_adopt_says_that_a_cpu_device_has_no_native_streams(self):
        with slip.Device("cpu") as device:
            error = error_of(lambda: slip.Stream.adopt(1234, device))
            self.assertEqual(error.code, "unsupported")
            self.assertIn("native", str(error))
            with self.assertRaises(TypeError):
                device.adopt("a stream")
            with self.assertRaisesRegex(TypeError, "name its device"):
                slip.Stream.adopt(1234)


class Times(unittest.TestCase):
    def test_simulated_times_are_exact(self):
        with slip.Device(SIM) as device:
            stream, other = device.stream("a", blocking=False), device.stream("b", blocking=False)
            pinned, memory, apart = device.alloc(50_000, kind="pinned"), device.alloc(50_000), device.alloc(8)
            start = stream.record(timed=True)
            stream.copy(memory, pinned)                                   # 50000 bytes at 1 byte/ns
            copied = stream.record(timed=True)
            stream.launch("layer", reads=[memory], time_ps=70 * US, width=0.5)   # a kernel without a function
            end = stream.record(timed=True)
            other.launch("beside", writes=[apart], time_ps=200 * US, width=0.5)
            device.sync(LIMIT)
            self.assertEqual(device.now_ps(), 200 * US)
            self.assertEqual(copied.elapsed_ns(start), 50_000)
            self.assertEqual(end.elapsed_ns(copied), 70_000)
            self.assertEqual(start.elapsed_time(end), 0.12)

    def test_a_kernel_without_a_function_needs_virtual_time(self):
        with slip.Device("cpu") as device, device.stream() as stream:
            error = error_of(lambda: stream.launch("layer", writes=[device.alloc(8)]))
            self.assertIn("only a sim device", str(error))

    def test_elapsed_time_needs_timed_events(self):
        with slip.Device("cpu") as device, device.stream() as stream:
            a, b = stream.record(), stream.record()
            stream.sync(LIMIT)
            self.assertEqual(error_of(lambda: b.elapsed_ns(a)).code, "invalid handle")


class Buffers(unittest.TestCase):
    def setUp(self):
        self.device = slip.Device("cpu")

    def test_the_buffer_protocol_shows_host_memory(self):
        pinned = self.device.alloc(8, "f8", kind="pinned")
        view = memoryview(pinned)
        self.assertEqual((view.format, view.itemsize, view.shape, view.readonly), ("d", 8, (8,), False))
        np.asarray(pinned)[:] = np.arange(8)
        self.assertEqual(view[7], 7.0)
        np.asarray(self.device.alloc(4, "i2"))[:] = 1   # device memory of cpu is host memory
        with slip.Device("sim:h200") as sim, self.assertRaises(BufferError):
            memoryview(sim.alloc(4))

    def test_memory_with_views_is_not_freed(self):
        buffer = self.device.alloc(8, "f4", kind="pinned", name="shown")
        array = np.asarray(buffer)
        with self.assertRaisesRegex(BufferError, "'shown' has 1 views"):
            buffer.free()
        del array
        buffer.free()
        self.assertTrue(buffer.closed)
        self.assertEqual(error_of(lambda: buffer[0:1]).code, "invalid handle")
        array = np.asarray(self.device.alloc(8, "f4", kind="pinned"))
        self.device.close(force=True)
        array[:] = 2   # the memory lives as long as the array
        self.assertEqual(array.sum(), 16)

    def test_an_array_keeps_the_memory(self):
        array = np.asarray(self.device.alloc(1 << 16, "u1", kind="pinned"))
        gc.collect()
        array[:] = 7
        self.assertEqual(int(array.sum()), 7 << 16)

    def test_a_kernel_may_keep_its_arrays(self):
        kept = []
        with self.device.stream() as stream:
            stream.launch(kept.append, writes=[self.device.alloc(64, "i4")])
            stream.sync(LIMIT)
        gc.collect()
        kept[0][:] = 3
        self.assertEqual(int(kept[0].sum()), 192)

    def test_wrapped_arrays(self):
        source = np.arange(100, dtype=np.float32)
        wrapped = self.device.wrap(source, name="source")
        self.assertEqual((wrapped.format, len(wrapped), wrapped.kind), ("f", 100, "pageable"))
        target = self.device.alloc(100, np.float32, kind="pinned")
        with self.device.stream() as stream:
            stream.copy(target, wrapped)
        self.assertTrue((np.asarray(target) == source).all())
        with self.assertRaises((BufferError, ValueError)):
            self.device.wrap(b"read-only")
        owner = weakref.ref(source)
        del source
        self.assertIsNotNone(owner())
        wrapped.free()
        self.assertIsNone(owner())

    def test_slices_count_elements(self):
        buffer = self.device.alloc(10, "f4")
        part = buffer[2:8]
        self.assertEqual((len(part), part.offset, part.nbytes), (6, 8, 24))
        self.assertEqual(part[1:3].offset, 12)
        with self.assertRaises(ValueError):
            buffer[::2]
        for part in (buffer, part):
            with self.assertRaisesRegex(TypeError, r"buffer\[a:b\]"):
                part[1]
        buffer.free()
        for access in (lambda: buffer[1], lambda: np.asarray(buffer)):   # numpy tries both
            self.assertIn("was freed", str(error_of(access)))
        with slip.Device("sim:h200") as device:
            with self.assertRaisesRegex(BufferError, "copy it to pinned memory"):
                np.asarray(device.alloc(4))

    def test_element_types(self):
        for dtype, size in (("u1", 1), ("float16", 2), (np.int64, 8), (np.dtype("f8"), 8), (float, 8), ("q", 8)):
            self.assertEqual(self.device.alloc(1, dtype).itemsize, size)
        with self.assertRaisesRegex(ValueError, "no element type 'f3'"):
            self.device.alloc(1, "f3")

    def test_wrong_operands_are_type_errors(self):
        stream = self.device.stream()
        with self.assertRaisesRegex(TypeError, "Device.wrap"):
            stream.copy(np.zeros(4), self.device.alloc(4))
        with self.assertRaises(TypeError):
            stream.launch(3)
        with self.assertRaisesRegex(ValueError, "'gpu'"):
            self.device.alloc(1, kind="gpu")
        with self.assertRaisesRegex(TypeError, "no option 'wrokers'"):
            slip.Device("cpu", wrokers=2)
        for option, wrong in (("memory_limit", -5), ("workers", "many"), ("strict", "x")):
            with self.assertRaisesRegex(ValueError, f"{option} is {wrong!r}; it must be"):
                slip.Device("cpu", **{option: wrong})
        for alloc in (self.device.alloc, self.device.stream().alloc):
            self.assertIn("alloc of -1 elements", str(error_of(lambda: alloc(-1), slip.InvalidValue)))
            with self.assertRaisesRegex(ValueError, "64 bits"):  # the product would be 16 bytes
                alloc((1 << 61) + 2, "f8")


class Errors(unittest.TestCase):
    def test_classes_and_codes(self):
        with slip.Device("cpu", memory_limit=1000) as device, device.stream() as stream:
            memory = error_of(lambda: device.alloc(2000, name="large"), MemoryError)
            self.assertIsInstance(memory, slip.OutOfMemory)
            self.assertEqual(memory.code, "out of memory")
            self.assertIn("large", str(memory))
            value = error_of(lambda: stream.copy(device.alloc(8), device.alloc(16)), ValueError)
            self.assertIsInstance(value, slip.InvalidValue)
            self.assertEqual(value.code, "invalid value")
            self.assertEqual(value.file, __file__)
        self.assertEqual(error_of(lambda: slip.Device("gpu")).code, "invalid device")
        self.assertIsInstance(error_of(lambda: slip.read_trace("/no/such/file")), OSError)
        self.assertIn("invalid handle", slip.ERROR_CODES)

    def test_an_exception_in_a_kernel_becomes_the_streams_error(self):
        def fails(out):
            raise KeyError("missing weight")

        for name in ("cpu", "sim:h200"):
            with self.subTest(name), slip.Device(name) as device:
                stream, other = device.stream(blocking=False), device.stream(blocking=False)
                out, ran = device.alloc(8), []
                stream.launch(fails, writes=[out], name="layer 3")
                stream.host(lambda: ran.append(1))
                error = error_of(lambda: stream.sync(LIMIT), slip.LaunchFailed)
                for part in ("layer 3", "KeyError", "missing weight", "test_core.py", "in fails"):
                    self.assertIn(part, str(error))
                self.assertEqual(ran, [])
                self.assertEqual(error_of(lambda: stream.fill(out, 0)).code, "launch failed")
                other.host(lambda: ran.append(2))
                other.sync(LIMIT)
                self.assertEqual(ran, [2])

    def test_a_host_function_must_not_call_the_runtime(self):
        with slip.Device("cpu") as device:
            stream, other = device.stream(blocking=False), device.stream(blocking=False)
            stream.host(other.sync)
            self.assertIn("not permitted", str(error_of(lambda: stream.sync(LIMIT))))

    def test_a_failed_launch_gives_the_function_back(self):
        with slip.Device("cpu") as device, device.stream() as stream:
            def kernel(out):
                pass

            alive = weakref.ref(kernel)
            with self.assertRaises(slip.InvalidValue):
                stream.launch(kernel, writes=[device.alloc(8)], width=2.0)
            del kernel
            self.assertIsNone(alive())


class Lifetimes(unittest.TestCase):
    def test_functions_live_until_their_op_has_run(self):
        class Holder:
            pass

        for launch in (lambda stream, function, out: stream.launch(function, writes=[out]),
                       lambda stream, function, out: stream.host(lambda: function(None), writes=[out])):
            with slip.Device("cpu") as device, Gate(device) as gate:
                stream, holder, seen = device.stream(blocking=False), Holder(), []
                alive = weakref.ref(holder)
                gate.hold(stream)
                launch(stream, lambda out, holder=holder: seen.append(holder is not None), device.alloc(8))
                del holder
                gc.collect()
                self.assertIsNotNone(alive())
                gate.open()
                stream.sync(LIMIT)
                self.assertEqual(seen, [True])
                del stream
            self.assertTrue(eventually(lambda: gc.collect() >= 0 and alive() is None))

    def test_a_buffer_whose_last_reference_a_function_has_is_freed(self):
        with slip.Device("cpu") as device:
            stream = device.stream(blocking=False)
            for _ in range(10):
                buffer = device.alloc(1 << 20)
                stream.host(lambda buffer=buffer: None)
                del buffer
            stream.sync(LIMIT)

            def freed():
                device.sync(LIMIT)   # frees what callbacks left
                return device.memory()["used"] == 0

            self.assertTrue(eventually(freed))

    def test_closing_a_device_in_use_is_an_error(self):
        device = slip.Device("cpu", label="busy")
        stream, buffer = device.stream("loads"), device.alloc(8, name="weights")
        unnamed = device.stream()
        error = error_of(device.close)
        for part in ("busy", "buffer 'weights'"):
            self.assertIn(part, str(error))
        self.assertRegex(str(error), r"by stream \d+ 'loads', stream \d+, ")
        stream.fill(buffer, 1)   # nothing was closed
        stream.sync(LIMIT)
        device.close(force=True)
        for use in (lambda: stream.fill(buffer, 1), lambda: device.stream(), lambda: buffer.kind, stream.query):
            self.assertEqual(error_of(use).code, "invalid handle")
        self.assertRegex(str(error_of(stream.query)), r"stream \d+ 'loads' was closed")
        self.assertRegex(str(error_of(unnamed.query)), r"stream \d+ was closed")

    def test_streams_and_buffers_keep_a_dropped_device(self):
        device = slip.Device("cpu")
        stream, buffer = device.stream(), device.alloc(8, kind="pinned")
        del device
        gc.collect()
        stream.fill(buffer, 9)
        stream.sync(LIMIT)
        self.assertEqual(memoryview(buffer)[7], 9)

    def test_a_closed_stream_finishes_its_work(self):
        ran = []
        with slip.Device("cpu") as device:
            stream = device.stream(blocking=False)
            stream.host(lambda: ran.append(1))
            stream.close()
            device.sync(LIMIT)
        self.assertEqual(ran, [1])


if __name__ == "__main__":
    unittest.main()
