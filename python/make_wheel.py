#!/usr/bin/env python3
"""Makes a wheel of the built package, with the standard library only: no network, no setuptools.

usage: make_wheel.py PACKAGE_DIR OUT_DIR --version V [--license FILE] [--readme FILE] [--strip PROGRAM]

PACKAGE_DIR holds the folder slipstream/ with the extension module. Prints the path of the wheel. The wheel is for this
interpreter, this kind of machine and its system libraries (libfmt and the others that the module links).
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path

KEPT = (".py", ".pyi", ".so")
TIME = (2026, 1, 1, 0, 0, 0)  # of all files in the wheel, so that the same files always make the same bytes


def tag() -> str:
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    return f"{python}-{python}-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"


def stripped(module: Path, strip: str) -> bytes:
    """The module without debug information, which is most of its size."""
    if not strip or not shutil.which(strip):
        return module.read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / module.name
        shutil.copyfile(module, copy)
        subprocess.run([strip, "--strip-debug", str(copy)], check=True)
        return copy.read_bytes()


def contents(package: Path, strip: str) -> dict[str, bytes]:
    files = {}
    for path in sorted((package / "slipstream").rglob("*")):
        if path.is_file() and (path.suffix in KEPT or path.name == "py.typed") and "__pycache__" not in path.parts:
            data = stripped(path, strip) if path.suffix == ".so" else path.read_bytes()
            files[path.relative_to(package).as_posix()] = data
    if not any(name.startswith("slipstream/_core.") and name.endswith(".so") for name in files):
        sys.exit(f"make_wheel: no extension module in {package}/slipstream: build slip_python first")
    return files


def metadata(version: str, readme: str) -> str:
    return (
        "Metadata-Version: 2.1\nName: slipstream\n"
        f"Version: {version}\n"
        "Summary: Compute, weight loading and communication on ordered streams\n"
        "Requires-Python: >=3.9\nProvides-Extra: numpy\nRequires-Dist: numpy; extra == 'numpy'\n"
        "License-File: LICENSE\nDescription-Content-Type: text/markdown\n\n" + readme
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="makes a wheel of the built package")
    parser.add_argument("package", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--version", required=True)
    parser.add_argument("--license", type=Path)
    parser.add_argument("--readme", type=Path)
    parser.add_argument("--strip", default="")
    options = parser.parse_args()

    files = contents(options.package, options.strip)
    info = f"slipstream-{options.version}.dist-info"
    readme = options.readme.read_text(encoding="utf-8") if options.readme else ""
    files[f"{info}/METADATA"] = metadata(options.version, readme).encode()
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: slipstream\nRoot-Is-Purelib: false\nTag: {tag()}\n".encode()
    if options.license:
        files[f"{info}/LICENSE"] = options.license.read_bytes()
    record = []
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record.append(f"{name},sha256={digest},{len(data)}\n")
    files[f"{info}/RECORD"] = ("".join(record) + f"{info}/RECORD,,\n").encode()

    options.out.mkdir(parents=True, exist_ok=True)
    wheel = options.out / f"slipstream-{options.version}-{tag()}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o755 if name.endswith(".so") else 0o644) << 16
            archive.writestr(entry, data)
    print(wheel)
    return 0


if __name__ == "__main__":
    sys.exit(main())
