"""slipstream.offload on cpu: weights in files."""

import copy
import os
import sys
import tempfile
import types
import unittest
import warnings
from unittest import mock

import slipstream as slip
from offload_models import Case, F, make, Model, nn, run, torch, write_tensors
from support import error_of


class Files(Case):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.plain = make()
        self.path = os.path.join(self.folder.name, "model.safetensors")
        self.save(self.plain)

    def save(self, model, drop=(), **changed):
        state = {name: value for name, value in model.state_dict().items() if name not in drop}
        write_tensors(self.path, {**state, **changed})

    def empty(self, **options):
        with slip.empty_weights():
            model = Model(**options)
        self.assertTrue(all(param.device.type == "meta" for param in model.parameters()))
        return model.eval()

    def test_weights_stay_in_the_files(self):
        wanted = run(self.plain)
        for where in (self.path, self.folder.name):
            model = slip.offload(self.empty(), "50%", "cpu", weights=where)
            for _ in range(5):
                self.assertTrue(torch.equal(run(model), wanted))
            self.assertEqual(model.slip.report().on_demand_loads, 0)
            for name, value in self.plain.state_dict().items():
                self.assertTrue(torch.equal(model.state_dict()[name], value))
            model.slip.restore()
            self.assertTrue(all(param.device.type == "meta" for param in model.parameters()))

    def test_a_tied_weight_under_its_other_name(self):
        self.save(self.plain, drop=("words.weight",))
        model = slip.offload(self.empty(), "50%", "cpu", weights=self.path)
        for _ in range(3):
            self.assertTrue(torch.equal(run(model), run(self.plain)))

    def test_a_small_tied_weight_under_its_other_name(self):
        class Heads(nn.Module):
            def __init__(self):
                super().__init__()
                self.body, self.one, self.two = (nn.Linear(32, 32) for _ in range(3))
                self.two.bias = self.one.bias

            def forward(self, x):
                return self.two(self.one(self.body(x)))
        plain, x = make(Heads), torch.ones(2, 32)
        for drop in ("one.bias", "two.bias"):
            self.save(plain, drop=(drop,))
            with slip.empty_weights():
                model = Heads().eval()
            model.two.bias = model.one.bias
            slip.offload(model, "100%", "cpu", weights=self.path)
            self.assertTrue(any(module is model.one for module, _, _ in model.slip._weights.small))
            self.assertIs(model.one.bias, model.two.bias)
            for _ in range(3):
                self.assertTrue(torch.equal(run(model, x), run(plain, x)))
            model.slip.restore()
            self.assertIs(model.one.bias, model.two.bias)
            self.assertEqual(model.one.bias.device.type, "meta")

    def test_recurrent_layers_without_memory(self):
        class Recurrent(nn.Module):
            def __init__(self):
                super().__init__()
                self.lstm, self.gru = nn.LSTM(16, 16, batch_first=True), nn.GRU(16, 16, batch_first=True)
                self.layers = nn.Sequential(*(nn.Linear(16, 16) for _ in range(20)))

            def forward(self, x):
                return self.layers(self.gru(self.lstm(x)[0])[0])
        plain, x = make(Recurrent), torch.ones(2, 3, 16)
        self.save(plain)
        with slip.empty_weights():
            model = Recurrent().eval()
        slip.offload(model, "80%", "cpu", weights=self.path)
        for _ in range(3):
            self.assertTrue(torch.equal(run(model, x), run(plain, x)))
        model.slip.restore()
        self.assertTrue(all(each.device.type == "meta" for each in model.lstm._flat_weights))

    def test_rows_and_whole_tables(self):
        for ids in (torch.tensor([[5]]), torch.arange(64).reshape(2, 32)):
            model = slip.offload(self.empty(), "50%", "cpu", weights=self.path)
            for _ in range(4):
                self.assertTrue(torch.equal(run(model, ids), run(self.plain, ids)))

    def test_another_type_in_the_files(self):
        with self.assertWarnsRegex(UserWarning, r"11 weights have another type .*\(F32 in the files, torch.float64 in the model\)"):
            model = slip.offload(self.empty().double(), "50%", "cpu", weights=self.path)
        for _ in range(3):
            self.assertTrue(torch.equal(run(model), run(copy.deepcopy(self.plain).double())))

    def test_host_memory_is_a_limit(self):
        def made(limit):
            return slip.offload(self.empty().double(), "50%", "cpu", weights=self.path, host_memory=limit)
        needed = sum(param.numel() * 8 for param in self.plain.parameters() if param.numel() >= 2048)
        self.refused("but host_memory is", lambda: made(needed - 1), ValueError)
        with self.assertWarns(UserWarning):
            model = made(needed)
        self.assertTrue(torch.equal(run(model), run(copy.deepcopy(self.plain).double())))

    def test_a_table_whose_forward_was_replaced(self):
        def replaced(model):
            table = model.words
            table.forward = lambda ids: table.weight.mean(0) + F.embedding(ids, table.weight)   # reads all rows
            return model
        ids = torch.tensor([[5]])
        wanted = run(replaced(make()), ids)
        model = slip.offload(replaced(self.empty()), "50%", "cpu", weights=self.path)
        for _ in range(4):
            self.assertTrue(torch.equal(run(model, ids), wanted))

    def test_files_that_do_not_fit(self):
        self.save(self.plain, drop=("blocks.1.up.weight", "blocks.2.up.bias"))
        error = error_of(lambda: slip.offload(self.empty(), "50%", "cpu", weights=self.path), ValueError)
        self.assertIn("2 weights of the model are not in the files", str(error))
        self.assertIn("blocks.1.up.weight", str(error))
        for name in ("blocks.1.up.weight", "blocks.1.up.bias"):
            self.save(self.plain, **{name: torch.zeros(3, 3)})
            self.refused("[3, 3] in the files", lambda: slip.offload(self.empty(), "50%", "cpu", weights=self.path), ValueError)
        self.refused("none", lambda: slip.offload(self.empty(), "50%", "cpu", weights=self.folder.name + "/none"))
        with open(self.path, "r+b") as file:
            file.truncate(100)
        self.assertIsInstance(error_of(lambda: slip.offload(self.empty(), "50%", "cpu", weights=self.path)), slip.Error)

    def test_quantised_files(self):
        def made():
            return slip.offload(self.empty(), "50%", "cpu", weights=self.path)
        for name in ("blocks.1.up.weight", "blocks.1.up.bias"):
            value = self.plain.state_dict()[name]
            self.save(self.plain, **{name: value.to(torch.int8)})
            self.refused("has the type I8 in the files, but torch.float32", made, ValueError)
            for scale in (name + "_scale", name + "_scale_inv", name + ".SCB", name + ".quant_state.nf4"):
                self.save(self.plain, **{scale: torch.ones(1)})
                self.refused(f"'{scale}' of the files is not used", made, ValueError)
        self.save(self.plain, **{"blocks.1.up.scales": torch.ones(1)})
        self.refused("'blocks.1.up.scales' of the files is not used", made, ValueError)
        self.save(self.plain, **{"other.weight": torch.ones(1)})
        with self.assertWarnsRegex(UserWarning, "1 tensors of the files are not used by the model: 'other.weight'"):
            made()
        self.save(self.plain)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            made()

    def test_a_quantised_folder_of_transformers(self):
        config = types.SimpleNamespace(quantization_config={"quant_method": "fp8"})
        fake = types.SimpleNamespace(AutoConfig=types.SimpleNamespace(from_pretrained=lambda folder: config))
        with mock.patch.dict(sys.modules, {"transformers": fake}):
            self.refused("has quantised weights", lambda: slip.from_pretrained(None, self.folder.name), ValueError)

    def test_weights_that_transformers_keeps_in_float32(self):
        class Wide(nn.Module):
            _keep_in_fp32_modules = ["wo"]

            def __init__(self, config):
                super().__init__()
                self.wo, self.two = nn.Linear(32, 32), nn.Linear(32, 32)
        config = types.SimpleNamespace(torch_dtype=torch.float16)
        fake = types.SimpleNamespace(AutoConfig=types.SimpleNamespace(from_pretrained=lambda folder: config))
        plain = Wide(None).half()
        self.save(plain)
        with mock.patch.dict(sys.modules, {"transformers": fake}), warnings.catch_warnings():
            warnings.simplefilter("ignore")   # the conversion takes memory
            model = slip.from_pretrained(Wide, self.folder.name, "100%", "cpu")
        for name, value in model.state_dict().items():
            self.assertEqual(value.dtype, torch.float32 if name.startswith("wo.") else torch.float16, name)
            self.assertTrue(torch.equal(value, plain.state_dict()[name].to(value.dtype)), name)

    def test_converted_weights_are_compressed(self):
        """Weights of another type in the files are converted, and kept compressed."""
        plain = make().to(torch.bfloat16)
        self.save(plain)
        wanted = run(plain.float())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")   # the conversion takes memory
            model = slip.offload(self.empty(), "50%", "cpu", weights=self.path, compress=True)
        for _ in range(3):
            self.assertTrue(torch.equal(run(model), wanted))

    def test_a_file_that_changes(self):
        model = slip.offload(self.empty(), "50%", "cpu", weights=self.path, stream_all=True)
        run(model)
        with open(self.path, "r+b") as file:
            file.truncate(os.path.getsize(self.path) // 2)
        for _ in range(2):   # each call begins with a new streamer
            self.refused("was changed while it was being used", lambda: [run(model) for _ in range(5)])
        for _ in range(2):   # so does each access, which does not show NaN
            self.refused("was changed while it was being used", lambda: [each.weight for each in model.blocks[4].children()])
        model.slip.restore()

    def test_a_read_that_fails_once(self):
        model = slip.offload(self.empty(), "50%", "cpu", weights=self.path, stream_all=True)
        run(model)
        with open(self.path, "rb") as file:
            whole = file.read()
        status = os.stat(self.path)
        os.truncate(self.path, 1000)
        self.assertIsInstance(error_of(lambda: [run(model) for _ in range(5)]), slip.Error)
        self.assertTrue(len(whole) == status.st_size)
        model.slip.restore()
        with open(self.path, "wb") as file:
            file.write(whole)
        slip.offload(model, "50%", "cpu", weights=self.path)
        for _ in range(3):
            self.assertTrue(torch.equal(run(model), run(self.plain)))


if __name__ == "__main__":
    unittest.main()
