"""Writes docs/deploy/requirements.txt, which the image of docs/deploy installs: `make lock`.

These are the entries of requirements.txt, with their hashes, that the image's extras bring in. In
place of PyPI's torch, which needs 2.3 GB of libraries for CUDA, it has torch for the CPU. Markers
are left out: on another platform than the Dockerfile's, pip finds no file with these hashes and
says so, where markers would install nothing.
"""

import re
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from packaging.markers import Marker

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "docs/deploy/requirements.txt"
EXTRAS = ("ui", "images", "zarr", "language", "server")
INDEX = "https://download.pytorch.org/whl/cpu"
CPU_TORCH = {"2.13.0": "6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b"}
"""Version to the SHA-256 of torch-VERSION+cpu-cp311-cp311-manylinux_2_28_x86_64.whl in INDEX."""
PLATFORM = {
    "python_version": "3.11",
    "python_full_version": "3.11.9",
    "implementation_name": "cpython",
    "platform_python_implementation": "CPython",
    "sys_platform": "linux",
    "platform_system": "Linux",
    "platform_machine": "x86_64",
}
GPU_LIBRARIES = ("nvidia-", "cuda-", "triton")
"""How the names of packages begin that only PyPI's torch needs."""


def main() -> int:
    """Write the file."""
    TARGET.write_text(content(), encoding="utf-8")
    return 0


def content() -> str:
    """Return what the file should contain."""
    wanted = brought_in(EXTRAS, PLATFORM)
    lines = [f"--extra-index-url {INDEX}"]
    text = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    for name, version, hashes in re.findall(
        r"^([\w.-]+)==(\S+) [^\n]*\\\n((?: +--hash=.*\n?)+)", text, re.MULTILINE
    ):
        if name == "torch":
            lines += [f"torch=={version}+cpu \\", f"    --hash=sha256:{CPU_TORCH[version]}"]
        elif name in wanted and not name.startswith(GPU_LIBRARIES):
            lines += [f"{name}=={version} \\", *hashes.rstrip("\n").split("\n")]
    return "\n".join([*lines, ""])


def brought_in(extras: Sequence[str], platform: dict[str, str] | None = None) -> set[str]:
    """Return the names of the packages that uv.lock installs for extras; by default, here."""
    packages = locked()
    pending, seen = [("clew", extra) for extra in ["", *extras]], set()
    while pending:
        name, extra = pending.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        package = packages[name]
        below = package.get("optional-dependencies", {}).get(extra, [])
        for item in below if extra else package.get("dependencies", []):
            if Marker(item.get("marker", "python_version > '3'")).evaluate(platform):
                pending += [(item["name"], each) for each in ["", *item.get("extra", [])]]
    return {name for name, _ in seen} - {"clew"}


def locked() -> dict[str, dict[str, Any]]:
    """Return the packages of uv.lock by name."""
    lock = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))
    return {package["name"]: package for package in lock["package"]}


if __name__ == "__main__":
    sys.exit(main())
