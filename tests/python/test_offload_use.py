"""slipstream.offload on cpu: what is refused, threads, weights that are read outside of calls."""

import copy
import os
import pickle
import sys
import tempfile
import threading
import unittest
from unittest import mock

import slipstream as slip
from offload_models import Case, IDS, make, Model, nn, run, torch
from support import LIMIT, Gate, error_of, eventually, run_script

from slipstream import _offload


class Refusals(Case):
    def test_sizes(self):
        self.refused("is too small: the model needs at least", lambda: slip.offload(make(), 1000, "cpu"), MemoryError)
        smallest = int(str(error_of(lambda: slip.offload(make(), 1000, "cpu"), MemoryError)).split("at least ")[1].split()[0])
        self.check(make(), budget=smallest)
        self.refused("is too small", lambda: slip.offload(make(), smallest - 1, "cpu"), MemoryError)

        def convolutions():
            return nn.Sequential(nn.Conv1d(4, 64, 5, padding=2, groups=2), nn.Conv1d(64, 64, 3))
        for budget in (1000, 30000, 49663):   # each has other weights that count as small
            error = str(error_of(lambda: slip.offload(make(convolutions), budget, "cpu"), MemoryError))
            self.check(make(convolutions), torch.ones(1, 4, 40), budget=int(error.split("at least ")[1].split()[0]))
        for wrong in ("lots", "6 apples", -1, float("nan"), float("inf"), "", "-5%"):
            self.refused("budget is", lambda: slip.offload(make(), wrong, "cpu"), ValueError)
        self.refused("budget is a number", lambda: slip.offload(make(), [1], "cpu"), TypeError)
        self.refused("on cpu, give a budget", lambda: slip.offload(make(), device="cpu"), ValueError)
        cuda = {"mem_get_info": lambda _: (1000, 0), "memory_reserved": lambda _: 300, "memory_allocated": lambda _: 100}
        with mock.patch.multiple(torch.cuda, **cuda):   # of a GPU that has the weights
            owned = sum(value.numel() * 4 for value in (*make().parameters(), *make().buffers()))
            self.assertEqual(_offload.free_memory(make(), torch.device("cpu")), 1000 + 200 + owned)
            self.assertEqual(_offload.free_memory(make(), torch.device("cuda:0")), 1000 + 200)
        for ring in ("50%", "200%"):
            for stream_all in (False, True):
                self.refused("ring is", lambda: slip.offload(make(), "50%", "cpu", ring=ring, stream_all=stream_all), ValueError)
        left = int(str(error_of(lambda: slip.offload(make(), "50%", "cpu", ring="90%"), ValueError)).split("leaves ")[1].split()[0])
        self.check(make(), ring=left)
        self.check(make(), ring="200%", budget="500%", stream_all=True)   # more than all weights need
        self.check(make(), ring="200%", budget=None, slowdown=0.5)
        self.refused("not both", lambda: slip.offload(make(), "50%", "cpu", slowdown=0.1), ValueError)
        self.refused("slowdown is -1", lambda: slip.offload(make(), device="cpu", slowdown=-1), ValueError)

    def test_models_and_devices(self):
        self.refused("takes a torch.nn.Module", lambda: slip.offload("model"), TypeError)
        self.refused("no weights", lambda: slip.offload(nn.ReLU(), "1GiB", "cpu"), ValueError)
        self.refused("no device 'xla'", lambda: slip.offload(make(), "50%", "xla"), ValueError)
        if not torch.cuda.is_available():
            self.refused("no device 'cuda:0'", lambda: slip.offload(make(), "50%", "cuda:0"), ValueError)
        self.refused("lazy module", lambda: slip.offload(nn.LazyLinear(3), "50%", "cpu"), ValueError)
        self.refused("TorchScript", lambda: slip.offload(torch.jit.script(nn.Linear(3, 3)), "50%", "cpu"), ValueError)
        with slip.empty_weights():
            empty = Model()
        self.refused("meta device", lambda: slip.offload(empty, "50%", "cpu"), ValueError)
        self.refused("weights='folder'", lambda: slip.offload(make(), "50%", "cpu", host_memory="1GiB"), ValueError)
        model = self.check(make())
        self.refused("offloaded already", lambda: slip.offload(model, "50%", "cpu"))
        self.refused("offloaded already", lambda: slip.offload(nn.Sequential(model), "50%", "cpu"))
        shares = nn.Sequential(nn.Linear(32, 128))
        shares[0].weight = model.blocks[1].up.weight
        self.refused("'0.weight' is also a weight of another model", lambda: slip.offload(shares, "50%", "cpu"))
        self.refused("torch.jit.trace", lambda: torch.jit.trace(model, IDS))
        other = make()
        other.slip = 1
        self.refused("attribute 'slip'", lambda: slip.offload(other, "50%", "cpu"), ValueError)

    def test_changes_of_an_offloaded_model(self):
        model = self.check(make())
        for change in (model.half, model.double, lambda: model.to("meta"), lambda: model.to(torch.bfloat16),
                       model.blocks[0].up.double):
            self.refused("cannot be moved or converted", change)
        self.assertIs(model.to("cpu"), model)
        self.assertIs(model.float(), model)
        self.refused("its parameters cannot change", lambda: setattr(model.head, "weight", nn.Parameter(torch.zeros(2, 2))))
        self.refused("its parameters cannot change", lambda: model.head.register_parameter("more", nn.Parameter(torch.zeros(2))))
        self.refused("its modules cannot change", lambda: model.add_module("more", nn.Linear(2, 2)))
        self.refused("its modules cannot change", lambda: model.blocks.append(nn.Linear(2, 2)))
        self.refused("its modules cannot change", lambda: model.__delattr__("head"))
        self.refused("load_state_dict", lambda: model.load_state_dict(make().state_dict()))
        self.refused("cannot be copied", lambda: copy.deepcopy(model), TypeError)
        self.refused("cannot be copied", lambda: pickle.dumps(model), TypeError)
        self.assertTrue(torch.equal(run(model), run(make())))

    def test_training(self):
        model = self.check(make())
        self.refused("training mode", lambda: model.train()(IDS))
        run(model)   # without gradients dropout and the like may be active
        model.eval()
        self.refused("requires a gradient", lambda: model.blocks[0](torch.randn(2, 32, requires_grad=True)))
        model.blocks[2].up.weight.requires_grad_(True)
        self.refused("cannot be trained", lambda: model(IDS))
        model.blocks[2].up.weight.requires_grad_(False)
        self.assertTrue(torch.equal(model(IDS), run(make())))

    def test_gradients_of_nested_inputs(self):
        class Holder:
            x = torch.ones(2, 32, requires_grad=True)

        class Nested(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = nn.Sequential(*(nn.Linear(32, 32) for _ in range(4)))

            def forward(self, x):
                x = x[0]["x"] if isinstance(x, tuple) else x.x
                return {"out": (self.layers(x),)}
        model = self.check(make(Nested), Holder, calls=0)
        for _ in range(3):
            self.refused("an input of the offloaded model requires a gradient", lambda: model(({"x": Holder.x},)))
            self.refused("an output of the offloaded model requires a gradient", lambda: model(Holder))
            run(model, Holder)
            model(({"x": Holder.x.detach()},))

    def test_an_exception_in_forward(self):
        model = self.check(make())
        for _ in range(3):
            with self.assertRaises(ArithmeticError):
                run(model, IDS, True)
            self.assertTrue(torch.equal(run(model), run(make())))
        with self.assertRaises((RuntimeError, IndexError)):
            run(model, IDS + 1000)
        self.assertTrue(torch.equal(run(model), run(make())))

    def test_an_exception_in_the_first_call(self):
        model = make()
        slip.offload(model, "50%", "cpu")
        with self.assertRaises(ArithmeticError):
            run(model, IDS, True)
        for _ in range(3):
            self.assertTrue(torch.equal(run(model), run(make())))

    def test_two_threads(self):
        model = make()
        inside, leave = threading.Event(), threading.Event()
        hold = []

        def wait(*_):
            if threading.current_thread() is not threading.main_thread() and hold:
                inside.set()
                self.assertTrue(leave.wait(LIMIT))
        model.blocks[2].register_forward_pre_hook(wait)
        self.check(model)
        wanted = run(make())
        found = []
        hold.append(True)
        thread = threading.Thread(target=lambda: found.append(run(model)))
        thread.start()
        try:
            self.assertTrue(inside.wait(LIMIT))
            self.refused("another thread is inside a call", lambda: run(model))
            self.refused("another thread is inside a call", lambda: model.blocks[1].up.weight)
            self.refused("another thread is inside a call", model.slip.restore)
        finally:
            leave.set()
            thread.join(LIMIT)
        self.assertTrue(torch.equal(found[0], wanted))
        self.assertTrue(torch.equal(run(model), wanted))

    def test_reports_of_another_thread(self):
        model = make()
        inside, leave, happened = threading.Event(), threading.Event(), []

        def wait(*_):
            if threading.current_thread() is not threading.main_thread():
                model.slip.report()   # inside a call of this thread
                self.refused("cannot run inside a call", model.slip.verify)
                inside.set()
                self.assertTrue(leave.wait(LIMIT))
                happened.append("call")
        self.check(model)
        wanted, session = run(make()), model.slip
        model.blocks[2].register_forward_hook(wait)
        for read in (session.report, session.plan, session.predict, session.verify):
            inside.clear(), leave.clear(), happened.clear()
            outputs = []
            call = threading.Thread(target=lambda: outputs.append(run(model)))
            call.start()
            try:
                self.assertTrue(inside.wait(LIMIT))
                report = threading.Thread(target=lambda: (read(), happened.append("report")))
                report.start()
                self.assertTrue(eventually(lambda: not report.is_alive() or session._lock.reports.locked()))
            finally:
                leave.set()
                call.join(LIMIT)
            report.join(LIMIT)
            self.assertEqual(happened, ["call", "report"])
            self.assertTrue(torch.equal(outputs[0], wanted))

    def test_calls_while_another_thread_reports(self):
        model, wanted = self.check(make()), run(make())
        done, reports, errors = threading.Event(), [], []

        def watch():
            try:
                while not done.is_set():
                    reports.append((model.slip.report(), model.slip.plan(), model.slip.predict(), model.slip.verify()))
            except slip.Error as error:
                errors.append(error)
        thread = threading.Thread(target=watch)
        thread.start()
        try:
            for _ in range(50):
                self.assertTrue(torch.equal(run(model), wanted))
                model.blocks[0].up.weight  # noqa: B018
        finally:
            done.set()
            thread.join(LIMIT)
        self.assertEqual(errors, [])

    def test_a_forked_child_and_exit_while_offloaded(self):
        code, out, errors = run_script(
            "import os, sys, warnings; sys.path.insert(0, 'TESTS')\n"
            "warnings.simplefilter('ignore')   # Python 3.12 warns of each fork of a process with threads\n"
            "import offload_models as t, slipstream as slip, torch\n"
            "model = slip.offload(t.make(), '50%', 'cpu'); wanted = t.run(t.make()); t.run(model)\n"
            "if os.fork() == 0:\n"
            "    for call in (lambda: t.run(model), model.slip.restore, model.slip.plan):\n"
            "        try: call()\n"
            "        except slip.Error as error: print('a forked child cannot use it' in str(error), flush=True)\n"
            "    del model\n"
            "    sys.exit(0)\n"
            "print(os.wait()[1], torch.equal(t.run(model), wanted))\n".replace("TESTS", os.path.dirname(os.path.abspath(__file__))))
        self.assertEqual((code, out.split(), errors), (0, ["True", "True", "True", "0", "True"], ""))

    def test_without_torch(self):
        code, out, errors = run_script(
            "import sys; sys.modules['torch'] = None\n"
            "import slipstream as slip\n"
            "for call in (lambda: slip.offload(None), lambda: slip.from_pretrained(None, '.'), slip.empty_weights):\n"
            "    try: call()\n"
            "    except ImportError as error: print('needs PyTorch' in str(error))\n")
        self.assertEqual((code, out.split()), (0, ["True"] * 3), errors)

    def test_from_pretrained_without_transformers(self):
        with mock.patch.dict(sys.modules, {"transformers": None}), tempfile.TemporaryDirectory() as folder:
            self.refused("needs the package transformers", lambda: slip.from_pretrained(None, folder), ImportError)
            self.refused("is not a folder", lambda: slip.from_pretrained(None, folder + "/none"), ValueError)


class Accesses(Case):
    def test_weights_outside_of_calls(self):
        plain = make()
        model = make()
        slip.offload(model, "50%", "cpu")
        for _ in range(4):
            self.assertTrue(torch.equal(model.blocks[3].up.weight, plain.blocks[3].up.weight))
            self.assertTrue(torch.equal(model.get_parameter("blocks.1.down.weight"), plain.blocks[1].down.weight))
            self.assertTrue(torch.equal(run(model), run(plain)))

    def test_more_accesses_than_fit(self):
        plain = make()
        for options in ({"budget": "30%"}, {"budget": "30%", "stream_all": True}, {"budget": "18KiB"}):
            model = slip.offload(make(), device="cpu", **options)
            for _ in range(4):
                for found, wanted in zip(model.modules(), plain.modules()):
                    if hasattr(wanted, "weight"):
                        self.assertTrue(hasattr(found, "weight") and torch.equal(found.weight, wanted.weight))
                self.assertTrue(torch.equal(run(model), run(plain)))

    def test_a_write_is_not_silently_lost(self):
        model, plain = self.check(make(), stream_all=True), make()
        with torch.no_grad():
            model.blocks[3].up.weight.add_(1)
            model.blocks[2].up.weight  # noqa: B018
            self.refused("'blocks.3.up.weight' was changed outside of a call", lambda: run(model))
            for _ in range(2):
                self.assertTrue(torch.equal(run(model), run(plain)))
            model.blocks[1].up.weight.mul_(2)
        with self.assertWarnsRegex(UserWarning, "'blocks.1.up.weight' was changed while"):
            model.slip.restore()
        self.assertTrue(torch.equal(run(model), run(plain)))

    def test_an_access_after_a_call_that_found_no_memory(self):
        model, plain = self.check(make(), stream_all=True), make()
        model.slip._restart = True
        with mock.patch.object(model.slip, "_make_streamer", side_effect=slip.OutOfMemory("none is left")):
            self.refused("none is left", lambda: run(model), MemoryError)
            self.refused("has failed", model.slip.report)
            self.refused("none is left", lambda: model.blocks[3].up.weight, MemoryError)
        self.assertTrue(torch.equal(model.blocks[3].up.weight, plain.blocks[3].up.weight))
        self.assertTrue(torch.equal(run(model), run(plain)))

    def test_an_access_waits_in_its_stream(self):
        """The next call may use another stream: the place of the weight is free only after the stream of the access."""
        model = self.check(make(), stream_all=True)
        session, device = model.slip, model.slip._slip_device
        first, second = (device.stream(name, blocking=False) for name in ("first", "second"))
        with Gate(device) as gate:
            with mock.patch.object(session, "_stream", lambda: first):
                model.blocks[3].up.weight  # noqa: B018
            gate.hold(first)
            with mock.patch.object(session, "_stream", lambda: second):
                session._close_open_groups()
            self.assertFalse(second.query())
        second.sync(LIMIT)
        self.assertTrue(torch.equal(run(model), run(make())))

    def test_metadata_and_state(self):
        model, plain = self.check(make()), make()
        for (name, found), (_, wanted) in zip(model.named_parameters(), plain.named_parameters()):
            self.assertEqual((found.shape, found.dtype, found.device), (wanted.shape, wanted.dtype, wanted.device), name)
        found, wanted = model.state_dict(), plain.state_dict()
        self.assertEqual(list(found), list(wanted))
        for name, value in wanted.items():
            self.assertTrue(torch.equal(found[name], value), name)
        self.assertEqual(len(list(model.parameters())), len(list(plain.parameters())))
        self.assertEqual(repr(model), repr(plain))

    def test_state_of_modules_with_their_own_rules(self):
        class Extra(nn.Linear):
            count = 3

            def get_extra_state(self):
                return {"count": self.count}

            def set_extra_state(self, state):
                self.count = state["count"]

        class Scaled(nn.Linear):
            def _save_to_state_dict(self, destination, prefix, keep_vars):
                super()._save_to_state_dict(destination, prefix, keep_vars)
                destination[prefix + "double"] = self.weight.detach() * 2
                destination[prefix + "again"] = self._parameters["weight"].detach()
        def layers():
            made = nn.Sequential(*(kind(32, 32) for kind in (Extra, Scaled, nn.Linear, nn.Linear, nn.Linear)))
            own = made[3]._save_to_state_dict
            made[3]._save_to_state_dict = lambda into, prefix, keep: (own(into, prefix, keep), into.update({prefix + "own": 1}))
            return made
        plain, x = make(layers), torch.ones(2, 32)
        before = [set(each.__dict__) for each in plain.modules()]
        for options in ({"stream_all": True}, {}):
            model = self.check(make(layers), x, **options)
            for keep in (False, True):
                found, wanted = model.state_dict(keep_vars=keep), plain.state_dict(keep_vars=keep)
                run(model, x)   # the dict has no bytes of the ring
                self.assertEqual(list(found), list(wanted))
                for name, value in wanted.items():
                    self.assertTrue(torch.equal(found[name], value) if isinstance(value, torch.Tensor) else found[name] == value)
            self.assertTrue(torch.equal(run(model, x), run(plain, x)))
            model.slip.restore()
            self.assertEqual([set(each.__dict__) for each in model.modules()], before)
            self.assertEqual(model.state_dict()["3.own"], 1)

    def test_a_weight_is_not_silently_wrong(self):
        """References that were kept show NaN between the uses of a weight, not bytes of another one."""
        model = self.check(make(), stream_all=True)
        kept = dict(model.named_parameters())["blocks.4.up.weight"]
        self.assertTrue(kept.isnan().all())
        turned = nn.Module()
        turned.turn = nn.Parameter(torch.ones(64, 64, dtype=torch.complex64))
        kept_turn = turned.turn
        slip.offload(turned, "100%", "cpu", stream_all=True)
        self.assertTrue(kept_turn.isnan().all())
        self.assertTrue(torch.equal(turned.slip.restore().turn, torch.ones(64, 64, dtype=torch.complex64)))
        self.assertIsInstance(error_of(lambda: kept.add_(1), RuntimeError), RuntimeError)


if __name__ == "__main__":
    unittest.main()
