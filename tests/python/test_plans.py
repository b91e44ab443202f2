"""Plans, proofs, predictions, the race checker, traces, and ranks."""

import gc
import importlib.util
import os
import pickle
import tempfile
import threading
import unittest

import numpy as np

import slipstream as slip
from slipstream._torch_profile import name_streams
from support import LIMIT, SIM, US, error_of


def scale(source, out, factor):
    out[:] = factor * source


def capture_pair(device, order=True):
    """Two products of `source` in two streams, then their sum; without `order` the sum does not wait for the second."""
    main, side = device.stream("main", blocking=False), device.stream("side", blocking=False)
    source, out = (device.alloc(64, "f4", kind="pinned", name=name) for name in ("source", "out"))
    left, right = device.alloc(64, "f4", name="left"), device.alloc(64, "f4", name="right")
    with main.capture() as plan:
        side.wait(main.record())
        main.launch(scale, [source], [left], [2.0], name="twice", time_ps=10 * US, width=0.5)
        side.launch(scale, [source], [right], [3.0], name="thrice", time_ps=30 * US, width=0.5)
        if order:
            main.wait(side)
        main.launch(np.add, [left, right], [out], name="add", time_ps=5 * US)
        if not order:
            main.wait(side)
    return main, plan, source, out


class Plans(unittest.TestCase):
    def test_a_plan_runs_and_takes_other_buffers_and_scalars(self):
        with slip.Device("cpu") as device:
            main, plan, source, out = capture_pair(device)
            np.asarray(source)[:] = 1
            plan.launch(main)
            main.sync(LIMIT)
            self.assertEqual(np.asarray(out)[0], 5)
            other = [device.alloc(64, "f4", kind="pinned") for _ in range(2)]
            np.asarray(other[0])[:] = 10
            plan.launch(main, buffers={source: other[0], out: other[1]}, scalars={("thrice", 0): 4.0})
            main.sync(LIMIT)
            self.assertEqual(np.asarray(other[1])[63], 60)
            self.assertEqual(np.asarray(out)[0], 5)

    def test_what_a_plan_contains(self):
        with slip.Device("cpu") as device:
            _, plan, _, _ = capture_pair(device)
            ops = slip.ops(plan)
            self.assertEqual([(op.name, op.stream, op.waits) for op in ops],
                             [("twice", 0, []), ("thrice", 1, []), ("add", 0, [1])])
            self.assertEqual((len(plan), plan.streams, len(plan.buffers)), (3, 2, 4))
            self.assertEqual(ops[0].file, __file__)
            self.assertIn("thrice", plan.describe())

    def test_a_plan_keeps_its_buffers_and_functions(self):
        with slip.Device("cpu") as device:
            stream, seen = device.stream(blocking=False), []
            with stream.capture() as plan:
                memory = device.alloc(4, "i4", name="kept")
                stream.fill(memory, 1)
                stream.launch(lambda array: seen.append(int(array[0])), reads=[memory])
                stream.host(lambda: seen.append("host"))
                del memory
            gc.collect()
            for _ in range(3):
                plan.launch(stream)
            stream.sync(LIMIT)
            self.assertEqual(seen, [0x01010101, "host"] * 3)

    def test_wrong_bindings(self):
        with slip.Device("cpu") as device:
            main, plan, source, _ = capture_pair(device)
            with self.assertRaisesRegex(TypeError, "captured as a float"):
                plan.launch(main, scalars={("thrice", 0): 4})
            with self.assertRaisesRegex(ValueError, "no op 'fourth'"):
                plan.launch(main, scalars={("fourth", 0): 4.0})
            with self.assertRaisesRegex(slip.InvalidValue, "'twice' of the plan uses bytes 0 to 256 .* has 8"):
                plan.launch(main, buffers={source: device.alloc(8)})
            with self.assertRaisesRegex(ValueError, "no op of the plan uses buffer 'other'"):
                plan.launch(main, buffers={device.alloc(8, name="other"): source})
            for call in (slip.verify, slip.predict, slip.ops):
                with self.assertRaisesRegex(TypeError, "expected a Plan.*not Stream"):
                    call(main)

    def test_an_exception_inside_a_capture_ends_it(self):
        with slip.Device("cpu") as device:
            stream = device.stream(blocking=False)
            with self.assertRaisesRegex(RuntimeError, "mine"):
                with stream.capture() as plan:
                    stream.host(lambda: None)
                    raise RuntimeError("mine")
            self.assertFalse(stream.capturing)
            self.assertIn("an exception has ended the capture", str(error_of(lambda: plan.launch(stream))))   # only a part
            with self.assertRaises(slip.Error):
                with stream.capture():
                    stream.sync()   # not allowed in a capture, and invalidates it
            stream.sync(LIMIT)
            with stream.capture() as plan:
                self.assertEqual(error_of(plan.describe).code, "invalid handle")   # not captured yet
            self.assertEqual(len(plan), 0)

    def test_verify_proves_or_names_the_race(self):
        with slip.Device("cpu") as device:
            _, plan, _, _ = capture_pair(device)
            proof = slip.verify(plan)
            self.assertTrue(proof.proven, proof.text)
            self.assertEqual(proof.races, [])
            _, wrong, _, _ = capture_pair(device, order=False)
            found = slip.verify(wrong)
            self.assertEqual((found.proven, found.verdict), (False, "race"))
            race = found.races[0]
            self.assertEqual((race.first, race.second, race.buffer, race.bytes), (1, 2, "right", 256))
            self.assertEqual(found.missing, [(2, 1)])
            self.assertIn("thrice", str(found))

    def test_an_op_without_ranges_cannot_be_proven(self):
        with slip.Device("cpu") as device:
            stream = device.stream(blocking=False)
            with stream.capture() as plan:
                stream.host(lambda: None)
            self.assertEqual(slip.verify(plan).verdict, "unknown")
            self.assertEqual(slip.verify(plan).unknown, [0])

    def test_predict_gives_exact_times_and_runs_nothing(self):
        with slip.Device("cpu") as device:
            _, plan, _, out = capture_pair(device)
            np.asarray(out)[:] = 7
            prediction = slip.predict(plan, SIM)
            self.assertEqual(prediction.time_ps, 35 * US)   # thrice (30 us) beside twice, then add (5 us)
            self.assertEqual({span.name: span.duration_ps for span in prediction.trace.spans if span.kind == "kernel"},
                             {"twice": 10 * US, "thrice": 30 * US, "add": 5 * US})
            self.assertEqual(np.asarray(out)[0], 7)
            self.assertEqual(error_of(lambda: slip.predict(plan, "cpu")).code, "invalid device")


class Checks(unittest.TestCase):
    def run_pair(self, device, ordered):
        a, b = device.stream("a", blocking=False), device.stream("b", blocking=False)
        memory, pinned = device.alloc(256, name="shared"), device.alloc(256, kind="pinned")
        a.copy(memory, pinned, "load")
        if ordered:
            b.wait(a)
        b.launch(lambda source: None, reads=[memory], name="use")
        device.sync(LIMIT)

    def test_a_race_is_found_while_the_program_runs(self):
        with slip.Device("cpu") as device:
            with slip.check() as races:
                self.run_pair(device, ordered=False)
            report = races.report()
            self.assertEqual(len(report.races), 1, report.text)
            race = report.races[0]
            self.assertEqual((race.buffer, race.offset, race.bytes), ("shared", 0, 256))
            self.assertEqual((race.first.name, race.first.writes, race.second.name, race.second.writes),
                             ("load", True, "use", False))
            self.assertEqual(race.first.file, __file__)
            self.assertEqual([(fix.after.name, fix.before.name) for fix in report.fixes], [("load", "use")])
            self.assertFalse(report.clean)
            with slip.check() as races:
                self.run_pair(device, ordered=True)
            self.assertEqual(races.report().races, [])
            self.assertTrue(races.report().clean)

    def test_host_views_are_accesses(self):
        with slip.Device("cpu") as device, slip.check() as races:
            stream, pinned = device.stream(blocking=False), device.alloc(64, kind="pinned", name="pinned")
            stream.fill(pinned, 1)
            with pinned.host_read():
                pass   # without a sync
            self.assertEqual([race.buffer for race in races.report().races], ["pinned"])
            stream.sync(LIMIT)

    def test_traces_are_checked_saved_and_read(self):
        with slip.Device("cpu") as device, tempfile.TemporaryDirectory() as folder:
            with slip.trace() as run:
                self.run_pair(device, ordered=False)
            found = run.check()
            self.assertFalse(found.clean)
            self.assertEqual([race.buffer for race in found.races.races], ["shared"])
            race = found.races.races[0]
            self.assertEqual((race.first.stream_name, race.second.stream_name), ("a", "b"))
            self.assertIn(f"'load' writes them in stream {race.first.stream} 'a' (", found.text)
            self.assertIn(f"make stream {race.second.stream} 'b' wait for it before 'use' (", found.text)
            self.assertEqual({span.name: span.stream_name for span in run.spans if span.name in ("load", "use")},
                             {"load": "a", "use": "b"})
            self.assertEqual([span.writes for span in run.spans if span.name == "load"], [[("shared", 0, 256)]])
            path = os.path.join(folder, "run.json")
            run.save(path)
            again = slip.read_trace(path)
            self.assertEqual(len(again.check().races.races), 1)
            self.assertEqual(len(again.spans), len(run.spans))
            with slip.trace() as good:
                self.run_pair(device, ordered=True)
            self.assertTrue(good.check().clean, good.check().text)
            page = os.path.join(folder, "run.html")
            good.html(page, title="a title of its own", prediction=run)
            with open(page, encoding="utf-8") as file:
                self.assertIn("a title of its own", file.read())

    def test_a_superfluous_wait_has_a_cost(self):
        with slip.Device(SIM) as device, slip.trace() as run:
            a, b = device.stream("a", blocking=False), device.stream("b", blocking=False)
            first, second = device.alloc(100_000, name="first"), device.alloc(8, name="second")
            pinned = device.alloc(100_000, kind="pinned")
            a.copy(first, pinned, "long")   # 100 us
            b.wait(a)
            b.launch("apart", writes=[second], time_ps=100 * US)
            device.sync(LIMIT)
            found = run.check()
        self.assertEqual([(wait.after.name, wait.before.name, wait.cost_ps) for wait in found.superfluous],
                         [("long", "apart", 100 * US)])
        self.assertEqual(found.superfluous[0].file, __file__)

    def test_stats_of_a_simulated_run_are_exact(self):
        with slip.Device(SIM) as device:
            a, b = device.stream("a", blocking=False), device.stream("b", blocking=False)
            pinned, x, y = device.alloc(40_000, kind="pinned"), device.alloc(40_000), device.alloc(8)
            with slip.trace() as run:
                a.copy(x, pinned)                                   # 0 to 40 us
                b.launch("layer", writes=[y], time_ps=30 * US)      # 0 to 30 us
                b.wait(a)
                b.launch("next", reads=[x], writes=[y], time_ps=10 * US)
                device.sync(LIMIT)
            stats = run.stats()
        self.assertEqual((stats.total_ps, stats.copy_ps, stats.overlapped_ps, stats.exposed_ps),
                         (50 * US, 40 * US, 30 * US, 10 * US))
        self.assertEqual(stats.busy_ps["compute"], 40 * US)
        self.assertEqual(stats.overlap_percent, 75.0)
        self.assertEqual([name for name, _ in stats.critical_path][-1], "next")
        self.assertEqual(stats.critical_path[-1][1], "dependency")

    def test_watch_writes_its_files(self):
        with slip.Device("cpu") as device, tempfile.TemporaryDirectory() as folder:
            path, page = os.path.join(folder, "run.json"), os.path.join(folder, "run.html")
            with slip.watch(path, html=page):
                with device.stream("my stream") as stream:
                    stream.fill(device.alloc(8), 1, "my fill")
            self.assertIn(("my fill", "my stream"),
                          [(span.name, span.stream_name) for span in slip.read_trace(path).spans])
            self.assertGreater(os.path.getsize(page), 1000)
            with self.assertRaisesRegex(TypeError, "no torch stream"):
                slip.watch(streams={"torch": 1234})

    def test_watch_ends_when_a_stream_has_failed(self):
        def fails():
            raise ValueError("on purpose")

        with slip.Device("cpu") as device:
            with self.assertRaisesRegex(slip.LaunchFailed, "on purpose"):
                with slip.watch() as run:
                    run.streams.update(first=device.stream("first"), second=device.stream("second"))
                    run.streams["first"].host(fails)
            self.assertTrue(run.streams["first"].closed and run.streams["second"].closed)
            with device.stream("later") as stream:
                stream.fill(device.alloc(8), 1, "after the recording")
            self.assertNotIn("after the recording", [span.name for span in run.spans])

    def test_watch_names_the_streams_of_a_torch_profile(self):
        def event(name, tid, ts, dur=2, cat="kernel", **args):
            return {"ph": "X", "name": name, "pid": 0 if "stream" in args else 9, "tid": tid, "ts": ts, "dur": dur,
                    "cat": cat, "args": args}

        events = name_streams([
            {"ph": "M", "name": "thread_name", "pid": 0, "tid": 7, "args": {"name": "stream 7"}},
            {"ph": "M", "name": "thread_name", "pid": 0, "tid": 13, "args": {"name": "stream 13"}},
            event("slipstream.watch: loads", 1, 10, 20, "user_annotation"),
            event("aten::zeros", 1, 11, 15, "cpu_op"),
            event("cudaLaunchKernel", 1, 12, 3, "cuda_runtime", correlation=4),
            event("fill", 13, 16, correlation=4, stream=13),
            event("slipstream.watch: loads", 13, 16, 2, "gpu_user_annotation", stream=13),
            event("cudaLaunchKernel", 1, 40, 3, "cuda_runtime", correlation=5),
            event("gemm", 7, 45, correlation=5, stream=7),
            event("Memcpy HtoD", 13, 45, cat="gpu_memcpy", correlation=6, stream=13)])
        self.assertEqual([one["name"] for one in events if one["ph"] == "X"], ["cudaLaunchKernel", "gemm", "Memcpy HtoD"])
        self.assertEqual({(one["tid"], one["args"]["name"]) for one in events if one["ph"] == "M"},
                         {(7, "stream 7"), (13, "loads")})

    def test_watch_records_torch_on_the_cpu(self):
        if importlib.util.find_spec("torch") is None:
            self.skipTest("no PyTorch")
        import torch
        with tempfile.TemporaryDirectory() as folder:
            page = os.path.join(folder, "run.html")
            with slip.watch(html=page, torch=True) as run:
                torch.ones(64, 64) @ torch.ones(64, 64)
            self.assertIn("aten::mm", {span.name for span in run.spans})
            self.assertGreater(os.path.getsize(page), 1000)


class Ranks(unittest.TestCase):
    def test_collectives_of_ranks_in_one_process(self):
        for name in ("cpu", "sim:h200"):
            with self.subTest(name):
                devices = slip.Device.open_all(name, 3)
                comms = slip.Communicator.init_all(devices, timeout=LIMIT)
                streams = [device.stream() for device in devices]
                data = [device.alloc(4, "f4", kind="pinned") for device in devices]
                all_data = [device.alloc(12, "f4", kind="pinned") for device in devices]
                for rank, buffer in enumerate(data):
                    np.asarray(buffer)[:] = rank + 1
                for comm, stream, buffer, gathered in zip(comms, streams, data, all_data):
                    comm.all_reduce(buffer, buffer, stream, op="max")
                    comm.broadcast(buffer[:1], buffer[:1], 0, stream)
                    comm.all_gather(gathered, buffer, stream)
                    comm.reduce_scatter(buffer, gathered, stream)
                    comm.barrier(stream)
                for stream in streams:
                    stream.sync(LIMIT)
                self.assertEqual([np.asarray(buffer).tolist() for buffer in data], [[9.0] * 4] * 3)
                with self.assertRaisesRegex(ValueError, "op is 'mean'"):
                    comms[0].all_reduce(data[0], data[0], streams[0], op="mean")

    def test_ranks_of_threads_exchange_messages(self):
        rank_id = pickle.loads(pickle.dumps(slip.UniqueId.create()))
        results, errors = {}, []

        def rank_main(rank):
            try:
                device = slip.Device("cpu")
                with slip.Communicator(device, rank_id, rank, 2, timeout=LIMIT) as comm, device.stream() as stream:
                    mine = device.alloc(2, "i8", kind="pinned")
                    theirs = device.alloc(2, "i8", kind="pinned")
                    np.asarray(mine)[:] = rank + 10
                    with slip.group():
                        comm.send(mine, 1 - comm.rank, stream)
                        comm.recv(theirs, 1 - comm.rank, stream)
                    stream.sync(LIMIT)
                    results[rank] = np.asarray(theirs).tolist()
            except Exception as error:  # noqa: BLE001: shown by the test
                errors.append(error)

        threads = [threading.Thread(target=rank_main, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT)
        self.assertEqual(errors, [])
        self.assertEqual(results, {0: [11, 11], 1: [10, 10]})

    def test_a_communicator_may_be_closed_while_another_thread_finalizes_it(self):
        for _ in range(10):
            comms = slip.Communicator.init_all(slip.Device.open_all("cpu", 2), timeout=LIMIT)
            begun, errors = threading.Event(), []

            def finalize():
                begun.set()
                try:
                    comms[0].finalize()  # waits for rank 1
                except slip.Error as error:  # it was closed before
                    errors.append(str(error))

            thread = threading.Thread(target=finalize)
            thread.start()
            self.assertTrue(begun.wait(LIMIT))
            comms[0].close()
            with self.assertRaisesRegex(slip.Error, "was closed"):
                comms[0].finalize()
            comms[1].close()
            thread.join(LIMIT)
            self.assertFalse(thread.is_alive())
            self.assertLessEqual(len(errors), 1)

    def test_a_group_whose_block_raises_sends_nothing_and_is_an_error(self):
        device = slip.Device("cpu")
        with slip.Communicator(device) as comm, device.stream() as stream:
            self.assertEqual((comm.rank, comm.nranks), (0, 1))
            a, b = (device.alloc(1, "i4", kind="pinned") for _ in range(2))
            np.asarray(a)[:], np.asarray(b)[:] = 5, 7
            with self.assertRaisesRegex(RuntimeError, "mine"), slip.group():
                comm.send(a, 0, stream)
                comm.recv(b, 0, stream)
                raise RuntimeError("mine")
            with self.assertRaisesRegex(slip.Error, "test_plans.py.*without end.., so its 2 messages were not sent"):
                comm.barrier(stream)
            with self.assertRaisesRegex(slip.Error, "without end"):
                stream.sync(LIMIT)
            self.assertEqual(np.asarray(b)[0], 7)
            comm.close()
            stream.close()   # the end of the block would synchronize the stream, which keeps its error


if __name__ == "__main__":
    unittest.main()
