"""The package itself: type hints, docstrings, the wheel, and life without numpy."""

import ast
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import slipstream as slip
from support import LIMIT, run_script

FOLDER = Path(slip.__file__).resolve().parent


def public(names):
    # _pybind11...: later versions of pybind11 add their own.
    return {name for name in names if not name.startswith(("__", "_pybind11"))
            or name in ("__enter__", "__exit__", "__len__", "__getitem__")}


class TypeHints(unittest.TestCase):
    def test_they_name_exactly_what_the_module_has(self):
        tree = ast.parse((FOLDER / "_core.pyi").read_text())
        classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        core = slip._core
        found = {name for name, value in vars(core).items() if isinstance(value, type)}
        self.assertEqual(set(classes), found)
        self.assertEqual(functions, {name for name, value in vars(core).items()
                                     if callable(value) and not isinstance(value, type) and not name.startswith("__")})
        for name, node in classes.items():
            declared = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
            self.assertEqual(public(declared), public(vars(getattr(core, name))), name)

    def test_they_have_the_parameters_of_the_module(self):
        tree = ast.parse((FOLDER / "_core.pyi").read_text())
        for cls in (node for node in tree.body if isinstance(node, ast.ClassDef)):
            for function in (node for node in cls.body if isinstance(node, ast.FunctionDef)):
                doc = getattr(getattr(slip._core, cls.name), function.name).__doc__ or ""
                parameters = function.args.args + function.args.kwonlyargs
                for name in (each.arg for each in parameters if each.arg != "self" and f"{function.name}(" in doc):
                    if cls.name in ("Device", "TraceData") and function.name in ("__init__", "open_all", "read", "save", "html"):
                        continue   # options by **kwargs; private functions without names
                    if function.name in ("__getitem__", "_predict"):
                        continue
                    self.assertRegex(doc, rf"\b{name}: ", f"{cls.name}.{function.name}")

    def test_all_names_exist_and_have_a_docstring(self):
        for name in slip.__all__:
            value = getattr(slip, name)
            if callable(value):
                self.assertTrue(value.__doc__, name)
        self.assertTrue((FOLDER / "py.typed").exists())


class Wheel(unittest.TestCase):
    def test_the_wheel_installs_and_imports(self):
        maker = os.environ.get("SLIP_WHEEL_MAKER")
        if not maker:
            self.skipTest("SLIP_WHEEL_MAKER is not set")
        with tempfile.TemporaryDirectory() as folder:
            package = Path(slip.__file__).parent.parent
            made = subprocess.run([sys.executable, "-B", maker, str(package), folder, "--version", slip.__version__],
                                  capture_output=True, text=True, check=True, timeout=LIMIT).stdout.strip()
            self.assertTrue(made.endswith(".whl"))
            pip = [sys.executable, "-m", "pip"]
            if subprocess.run([*pip, "--version"], capture_output=True, check=False).returncode != 0:
                self.skipTest("no pip")
            target = os.path.join(folder, "target")
            subprocess.run([*pip, "install", "--no-index", "--target", target, made], capture_output=True, check=True,
                           timeout=LIMIT)
            code, out, errors = run_script(
                "import slipstream as slip\n"
                "device = slip.Device('cpu')\n"
                "with device.stream() as stream: stream.fill(device.alloc(8), 1)\n"
                "print(slip.__version__, slip.__file__)", env={**os.environ, "PYTHONPATH": target}, cwd=folder)
            self.assertEqual((code, out.split()), (0, [slip.__version__, f"{target}/slipstream/__init__.py"]), errors)


class Docs(unittest.TestCase):
    def blocks(self, name):
        page = Path(__file__).resolve().parent.parent.parent / name
        return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)

    def test_the_examples_of_the_docs_run(self):
        first, second = self.blocks("docs/python.md")[:2]
        for text in (self.blocks("README.md")[0], f"{first}\nother = device.alloc(1000, 'f4')\n{second}"):
            with tempfile.TemporaryDirectory() as folder:
                code, out, errors = run_script(text + "\ncompute.sync(60)\n", cwd=folder)
            self.assertEqual(code, 0, errors)
            self.assertIn("proven", out)


class WithoutNumpy(unittest.TestCase):
    def test_views_are_memoryviews(self):
        code, out, errors = run_script("""
import sys
sys.modules["numpy"] = None   # an import of numpy fails
import slipstream as slip
seen = []
with slip.Device("cpu") as device, device.stream() as stream:
    pinned = device.alloc(4, "f4", kind="pinned")
    with pinned.host_write() as view:
        view[0] = 1.5
    stream.launch(lambda source: seen.append((type(source).__name__, source.format, source[0], source.readonly)), reads=[pinned])
print(seen)
""")
        self.assertEqual((code, out.strip()), (0, "[('memoryview', 'f', 1.5, True)]"), errors)


if __name__ == "__main__":
    unittest.main()
