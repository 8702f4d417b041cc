"""Every Triton kernel is compiled for NVIDIA cards, without a card.

The interpreter runs kernels as plain Python, so it accepts code that the compiler refuses.
"""

import importlib
import itertools
import subprocess
import sys
import tempfile
from typing import Any

import pytest

pytestmark = pytest.mark.slow

MODULES = (
    "clew.layers.triton_scan",
    "clew.link_prediction.losses.triton_slopes",
)
WHOLE_NUMBERS = {
    "time",
    "num_chunks",
    "num_states",
    "num_rows",
    "num_columns",
    "multiplier_stride",
    "power_stride",
}
CONSTANTS = {"EACH": 128, "CHUNK": 32, "BLOCK": 64, "ROWS": 32, "COLUMNS": 64}
COMPUTE_CAPABILITIES = (75, 90)
"""A T4 and an H100."""


@pytest.mark.parametrize("module", MODULES)
def test_kernels_compile(module: str, tmp_path) -> None:
    pytest.importorskip("triton")
    # A process of its own: the checks of shapes change the modules that this process imports.
    run = subprocess.run(
        [sys.executable, __file__, module, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert int(run.stdout) >= 2


def compile_kernels(name: str) -> int:
    """Compile the kernels that Python launches, and return their number."""
    import triton
    from triton.backends.compiler import GPUTarget

    module = importlib.import_module(name)
    count = 0
    for value in vars(module).values():
        names = getattr(value, "arg_names", [])
        if getattr(value, "__module__", "") != name or not WHOLE_NUMBERS & set(names):
            continue  # not a kernel, or one that only kernels call
        count += 1
        own = sorted({"VARIES", "ENDS"} & set(names))
        for flag, *flags in itertools.product((False, True), repeat=1 + len(own)):
            types, constants = types_of(names, flag)
            constants |= dict(zip(own, flags, strict=True))
            source = triton.compiler.ASTSource(value, types, constants)
            for capability in COMPUTE_CAPABILITIES:
                compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32))
                assert compiled.asm["ptx"]
    return count


def types_of(names: list[str], flag: bool) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the types of a kernel's arguments, and the values of its constants."""
    types = {}
    for name in names:
        if name.isupper():
            types[name] = "constexpr"
        elif name in WHOLE_NUMBERS:
            types[name] = "i32"
        else:
            types[name] = "fp32" if name == "gain" else "*fp32"
    return types, {name: CONSTANTS.get(name, flag) for name in names if name.isupper()}


if __name__ == "__main__":
    import os

    os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp(dir=sys.argv[2])
    print(compile_kernels(sys.argv[1]))  # noqa: T201
