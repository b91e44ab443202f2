"""slipstream.offload on cpu: outputs equal to the bit, changes of order, reports, restore."""

import collections
import copy
import dataclasses
import gc
import os
import tempfile
import unittest
from unittest import mock

import slipstream as slip
from offload_models import all_of, Case, gapped, IDS, interrupted, LOWER, make, nn, run, steps_of, torch, write_tensors
from support import error_of

from slipstream import _offload, _offload_groups


class Outputs(Case):
    def test_every_budget_gives_the_same_output(self):
        for budget in ("18KiB", "30%", "40%", "60%", "99%", "110%", "1GiB"):
            model = self.check(make(), budget=budget)
            plan = model.slip.plan()
            self.assertLessEqual(plan.device_bytes, plan.budget)
            self.assertLessEqual({f"blocks.{i}.{n}.weight" for i in range(5) for n in ("up", "down")},
                                 set(plan.resident) | set(plan.streamed))
            self.assertEqual(bool(plan.streamed), budget in ("18KiB", "30%", "40%", "60%", "99%"))

    def test_types(self):
        for kind in (torch.float32, torch.float64, *LOWER):
            self.check(make().to(kind))

    def test_compressed_weights_give_the_same_output(self):
        """Layers large enough that the planner streams them compressed; every bit of outputs and weights comes back."""
        torch.manual_seed(3)
        for kind in (torch.bfloat16, torch.float32):
            model = nn.Sequential(*(nn.Linear(768, 768, bias=False) for _ in range(12))).to(kind).eval()
            before = {name: value.clone() for name, value in model.state_dict().items()}
            x = torch.randn(2, 768).to(kind)
            wanted = run(model, x)
            for options in ({"stream_all": True}, {}):
                slip.offload(model, "50%", "cpu", compress=True, **options)
                for _ in range(4):
                    self.assertTrue(torch.equal(model(x), wanted))
                plan = model.slip.plan()
                self.assertIn("compressed", str(plan))
                self.assertLess(plan.pinned_bytes, (0.75 if kind == torch.bfloat16 else 0.9) * plan.weight_bytes)
                self.assertLessEqual(plan.device_bytes, plan.budget)
                self.assertEqual(model.slip.report().device_bytes, plan.device_bytes)
                proven, text = model.slip.verify()
                self.assertTrue(proven, text)
                for name, value in model.state_dict().items():
                    self.assertTrue(torch.equal(value, before[name]), name)
                model.slip.restore()
                self.assertTrue(torch.equal(run(model, x), wanted))

    def test_nothing_stays(self):
        model = self.check(make(), stream_all=True)
        self.assertEqual(model.slip.plan().resident, [])
        self.assertEqual(model.slip.plan().resident_bytes, 0)

    def test_calls_with_and_without_gradients_and_autocast(self):
        model = make()
        lower = torch.bfloat16 in LOWER
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=lower):
            low = model(IDS)
        wanted = run(model)
        slip.offload(model, "50%", "cpu")
        for _ in range(3):
            with torch.inference_mode():
                self.assertTrue(torch.equal(model(IDS), wanted))
            self.assertTrue(torch.equal(model(IDS), wanted))
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=lower):
                self.assertTrue(torch.equal(model(IDS), low))

    def test_layers_that_take_weights_from_each_other(self):
        torch.manual_seed(2)
        x = torch.randn(3, 7, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.check(nn.TransformerEncoder(layer, 3).eval(), x)
        self.check(nn.Sequential(*(nn.Linear(32, 32) for _ in range(4))).eval(), x)

    def test_attention(self):
        class Attention(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = nn.ModuleList(nn.MultiheadAttention(32, 4, batch_first=True) for _ in range(3))

            def forward(self, x):
                for layer in self.layers:
                    x = x + layer(x, x, x)[0]
                return x
        torch.manual_seed(2)
        self.check(Attention().eval(), torch.randn(3, 7, 32))

    def test_recurrent_convolution_and_lists(self):
        class Mixed(nn.Module):
            def __init__(self):
                super().__init__()
                self.conv = nn.Conv2d(3, 16, 3, padding=1).to(memory_format=torch.channels_last)
                self.batch = nn.BatchNorm2d(16)
                self.lstm = nn.LSTM(16, 16, num_layers=2, batch_first=True)
                self.more = nn.ParameterList(nn.Parameter(torch.randn(16, 16) / 4) for _ in range(9))

            def forward(self, x):
                x = torch.relu(self.batch(self.conv(x))).flatten(2).transpose(1, 2)
                x, _ = self.lstm(x)
                for each in self.more:
                    x = x @ each
                return x
        torch.manual_seed(2)
        model = Mixed().eval()
        model.batch.running_mean.normal_()
        self.check(model, torch.randn(2, 3, 5, 5).to(memory_format=torch.channels_last), budget="98%")

    def test_hooks_that_read_weights(self):
        """What a hook reads is released with its module: two weights do not fit at a time."""
        def layers():
            return nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(6)))

        def normed():
            return nn.Sequential(*(nn.utils.weight_norm(nn.Linear(64, 64, bias=False)) for _ in range(6)))
        x, seen = torch.ones(2, 64), []
        self.check(make(normed), x, budget="32%")
        plain = make(layers)
        sums = [float(layer.weight.sum()) for layer in plain]
        model = make(layers)
        model[1].register_forward_pre_hook(lambda module, _: seen.append(float(module.weight.sum())))
        model[2].register_forward_hook(lambda module, _, output: seen.append(float(module.weight.sum())))
        self.check(model, x, budget="32%")
        late = model[4].register_forward_hook(lambda module, _, output: output + module.weight[:2])
        for _ in range(3):
            seen.clear()
            self.assertTrue(torch.equal(run(model, x), run(plain[5], run(plain[:5], x) + plain[4].weight[:2])))
            self.assertEqual(seen, sums[1:3])
        late.remove()
        self.assertTrue(torch.equal(run(model, x), run(plain, x)))
        model.slip.restore()
        hooks = [len(each._forward_pre_hooks) + len(each._forward_hooks) for each in model]
        self.assertEqual(hooks, [0, 1, 1, 0, 0, 0])

    def test_an_exception_in_a_hook(self):
        def fail(module, _):
            if fails:
                raise ArithmeticError(f"after {module.weight.sum()}")
        fails, model = [], make()
        model.blocks[3].up.register_forward_pre_hook(fail)
        self.check(model, budget="30%")
        for _ in range(3):
            fails.append(True)
            with self.assertRaises(ArithmeticError):
                run(model)
            fails.clear()
            self.assertTrue(torch.equal(run(model), run(make())))

    def test_an_embedding_that_writes_its_weight(self):
        """With max_norm, a lookup scales rows of the table in place. So it stays on the device."""
        def layers():
            return nn.Sequential(nn.Embedding(64, 32, max_norm=1.0), *(nn.Linear(32, 32) for _ in range(6)))
        model, plain = make(layers), make(layers)
        slip.offload(model, "60%", "cpu")
        for _ in range(4):
            self.assertTrue(torch.equal(run(model), run(plain)))
        self.assertNotIn("0.weight", model.slip.plan().streamed)
        self.assertTrue(torch.equal(model.slip.restore()[0].weight, plain[0].weight))

    def test_tied_weights_are_one_group(self):
        for tied in (True, False):
            model = make(tied=tied)
            if not tied:   # another Parameter over the same memory
                model.head.weight.data = model.words.weight.data
            self.check(model)
            plan = model.slip.plan()
            self.assertEqual(len(plan.resident) + len(plan.streamed), 11)
            model.slip.restore()
            self.assertEqual(model.head.weight.data_ptr(), model.words.weight.data_ptr())

    def test_kinds_of_calls_have_their_own_plan(self):
        model = make()
        one, many = run(model, IDS[:1, :1]), run(model)
        slip.offload(model, "50%", "cpu")
        for _ in range(4):
            self.assertTrue(torch.equal(run(model), many))
            self.assertTrue(torch.equal(run(model, IDS[:1, :1]), one))
            self.assertTrue(torch.equal(run(model, IDS[:1, :1]), one))
        self.assertEqual(set(model.slip.plan().passes), {"Model 1 token", "Model 8 to 15 tokens"})
        self.assertEqual(model.slip.report().on_demand_loads, 0)

    def test_a_part_of_the_model_is_called(self):
        model = make()
        x = torch.randn(2, 3, 32)
        wanted, block = run(model), run(model.blocks[3], x)
        slip.offload(model, "50%", "cpu")
        for _ in range(4):
            self.assertTrue(torch.equal(run(model.blocks[3], x), block))
            self.assertTrue(torch.equal(run(model), wanted))


class Order(Case):
    def test_modules_used_twice_and_modules_passed_over(self):
        for order in ([0, 1, 1, 2, 3, 4], [0, 2, 4], [4, 3, 2, 1, 0], [0, 0, 0], []):
            model = make()
            model.order = order
            self.check(model)

    def test_an_order_that_changes_in_each_call(self):
        model, plain = make(), make()
        slip.offload(model, "40%", "cpu")
        draw = torch.Generator().manual_seed(3)
        for _ in range(30):
            model.order = plain.order = torch.randint(0, 5, (6,), generator=draw).tolist()
            self.assertTrue(torch.equal(run(model), run(plain)))

    def test_a_call_that_first_uses_nothing(self):
        model, plain = make(), make()
        slip.offload(model, "40%", "cpu", stream_all=True)
        for order in ([], [], [], [0, 1], [4], []):
            model.order = plain.order = order
            self.assertTrue(torch.equal(run(model, IDS[:, :1]), run(plain, IDS[:, :1])))

    def test_outputs_that_are_weights(self):
        Pair = collections.namedtuple("Pair", "whole part")

        @dataclasses.dataclass
        class Found:
            rows: torch.Tensor

        class Giver(nn.Module):
            def __init__(self, form):
                super().__init__()
                self.w, self.form = nn.Parameter(torch.randn(32, 32)), form

            def forward(self):
                return self.form(self.w)

        class Taker(nn.Module):
            def __init__(self):
                super().__init__()
                forms = (lambda w: w, lambda w: w[:5], lambda w: w.t(), lambda w: (w, 1), lambda w: Pair(w, w[3:4]),
                         lambda w: [w[1:]], lambda w: {"w": (w,)}, lambda w: Found(w[:3]))
                self.givers = nn.ModuleList(Giver(form) for form in forms)
                self.tail = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))

            def forward(self, x):
                found = [giver() for giver in self.givers]
                for layer in self.tail:
                    x = layer(x)
                assert isinstance(found[4], Pair)
                return found, x

        def flat(value):
            if isinstance(value, torch.Tensor):
                return [value]
            if isinstance(value, Found):
                return [value.rows]
            values = value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ()
            return [tensor for each in values for tensor in flat(each)]
        for budget in ("20%", "40%", "100%"):
            model, x = make(Taker), torch.ones(2, 32)
            wanted = [each.clone() for each in flat(run(model, x))]
            slip.offload(model, budget, "cpu")
            kept = [flat(run(model, x)) for _ in range(4)]   # also resident weights may move between calls
            for found in kept:
                self.assertEqual(len(found), len(wanted))
                for one, other in zip(found, wanted):
                    self.assertTrue(torch.equal(one, other))

    def test_experts_chosen_by_data(self):
        class Experts(nn.Module):
            def __init__(self):
                super().__init__()
                self.gate = nn.Linear(16, 6)
                self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(6))
                self.fused = nn.Parameter(torch.randn(6, 16, 16))

            def forward(self, x):
                chosen = self.gate(x).argmax(-1)
                for expert in chosen.unique().tolist():
                    mask = (chosen == expert).unsqueeze(-1)
                    x = torch.where(mask, self.experts[expert](x) @ self.fused[expert], x)
                return x
        torch.manual_seed(4)
        model = Experts().eval()
        inputs = [torch.randn(4, 16) for _ in range(10)]
        wanted = [run(model, x) for x in inputs]
        slip.offload(model, "80%", "cpu")
        for x, each in zip(inputs, wanted):
            self.assertTrue(torch.equal(run(model, x), each))


class Reports(Case):
    def test_plan_prediction_report_proof_and_timeline(self):
        model = make()
        slip.offload(model, "50%", "cpu")
        self.assertFalse(model.slip.plan().settled)
        self.refused("was not called yet", model.slip.predict)
        for _ in range(5):
            run(model)
        plan, predicted, report = model.slip.plan(), model.slip.predict(), model.slip.report()
        self.assertTrue(plan.settled)
        self.assertEqual(predicted.loaded_bytes, plan.passes["Model 8 to 15 tokens"])
        self.assertGreater(predicted.seconds, 0)
        self.assertEqual(report.calls["Model 8 to 15 tokens"], 4)   # since the plan was made
        self.assertEqual(report.on_demand_loads, 0)
        self.assertGreater(report.planned_bytes, 3 * predicted.loaded_bytes)
        self.assertEqual(report.device_bytes, plan.device_bytes)
        proven, text = model.slip.verify()
        self.assertTrue(proven, text)
        self.refused("there are: Model 8 to 15 tokens", lambda: model.slip.predict("other"), ValueError)
        with tempfile.TemporaryDirectory() as folder:
            for arguments in ((), (lambda: run(model),)):
                path = os.path.join(folder, "timeline.html")
                model.slip.timeline(path, *arguments)
                with open(path, encoding="utf-8") as file:
                    self.assertIn("blocks.", file.read())
            self.assertIsInstance(error_of(lambda: model.slip.timeline(folder + "/none/x.html"), OSError), slip.IoError)
        if os.path.exists("/dev/full"):
            self.assertIsInstance(error_of(lambda: model.slip.timeline("/dev/full"), OSError), slip.IoError)

    def test_a_slowdown_instead_of_a_budget(self):
        model = make()
        wanted = run(model)
        slip.offload(model, device="cpu", slowdown=0.5)
        for _ in range(4):
            self.assertTrue(torch.equal(run(model), wanted))
        self.assertTrue(model.slip.plan().settled)


class Restore(Case):
    def test_the_model_is_as_before(self):
        for calls in (0, 1, 4):
            model = make()
            model.blocks[1].up.weight.requires_grad_(False)
            before = all_of(model)
            values = {name: (value.clone(), value.data_ptr()) for name, value in model.state_dict().items()}
            grads = {name: value.requires_grad for name, value in model.named_parameters()}
            identity = {name: id(value) for name, value in model.named_parameters()}
            slip.offload(model, "50%", "cpu")
            for _ in range(calls):
                run(model)
            session = model.slip
            self.assertIs(session.restore(), model)
            self.assertEqual(all_of(model), before)
            self.assertEqual({name: value.requires_grad for name, value in model.named_parameters()}, grads)
            self.assertEqual({name: id(value) for name, value in model.named_parameters()}, identity)
            for name, value in model.state_dict().items():
                self.assertTrue(torch.equal(value, values[name][0]))
                self.assertEqual(value.data_ptr(), values[name][1])   # on cpu the memory is the same
            session.restore()   # does nothing
            self.refused("was restored", session.report)
            copy.deepcopy(model)
            model(IDS).sum().backward()

    def test_offload_again(self):
        model = make()
        wanted = run(model)
        for budget in ("50%", "30%", "80%"):
            slip.offload(model, budget, "cpu")
            self.assertTrue(torch.equal(run(model), wanted))
            model.slip.restore()

    def test_nothing_is_left(self):
        def state():
            gc.collect()
            return (len(os.listdir("/proc/self/fd")), sum(isinstance(each, (_offload.Offloaded, _offload_groups.Group))
                                                          for each in gc.get_objects()))
        self.check(make()).slip.restore()
        before = state()
        for _ in range(3):
            model = make()
            slip.offload(model, "50%", "cpu")
            run(model)
            run(model)
            model.slip.restore()
            del model
        self.assertEqual(state(), before)

    def test_an_interrupt_while_weights_are_moved(self):
        """Ctrl-C before each line that runs between the first change of the model and the end of offload()."""
        plain, before = gapped().state_dict(), all_of(gapped())
        for line in range(1, steps_of(lambda: slip.offload(gapped(), "50%", "cpu"), "prepare")):
            model = gapped()
            with interrupted(line, "prepare"):
                error_of(lambda: slip.offload(model, "50%", "cpu"), KeyboardInterrupt)
            self.assertEqual(all_of(model), before, f"line {line}")
            self.assertFalse(hasattr(model, "slip"))
            for name, value in model.state_dict().items():
                self.assertTrue(torch.equal(value, plain[name]), f"{name}, line {line}")

    def test_an_interrupted_restore_can_be_repeated(self):
        def offloaded():
            model = gapped()
            slip.offload(model, "50%", "cpu")
            run(model, torch.ones(2, 16))
            return model
        plain = gapped().state_dict()
        before = all_of(gapped())
        for line in range(1, steps_of(offloaded().slip.restore, "restore")):
            model = offloaded()
            session = model.slip
            with interrupted(line, "restore"):
                error_of(session.restore, KeyboardInterrupt)
            session.restore()
            self.assertEqual(all_of(model), before)
            for name, value in model.state_dict().items():
                self.assertTrue(torch.equal(value, plain[name]), f"{name}, line {line}")

    def test_a_restore_without_memory_can_be_repeated(self):
        model, plain = gapped(), gapped().state_dict()
        slip.offload(model, "50%", "cpu")
        session, original = model.slip, torch.empty_strided
        failures = [2]   # the call that fails

        def fail(*arguments, **options):
            self.assertIsNone(session._memory)   # the ring is given back before weights are brought back
            failures[0] -= 1
            if failures[0] == 0:
                raise RuntimeError("out of memory")
            return original(*arguments, **options)
        with mock.patch.object(torch, "empty_strided", fail):
            self.refused("no weight is lost", session.restore, MemoryError)
            failures[0] = 1
            self.refused("no weight is lost", session.restore, MemoryError)
        self.assertIs(model.slip, session)
        session.restore()
        for name, value in model.state_dict().items():
            self.assertTrue(torch.equal(value, plain[name]), name)

    def test_restore_of_weights_that_the_files_replaced(self):
        model = make()
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.safetensors")
            write_tensors(path, make().state_dict())
            slip.offload(model, "50%", "cpu", weights=path)
            wanted = run(model)
            model.slip.restore()
        self.assertTrue(torch.equal(run(model), wanted))


if __name__ == "__main__":
    unittest.main()
