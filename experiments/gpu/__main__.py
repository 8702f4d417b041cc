"""Checks and measures Clew on a GPU within minutes, most important first.

    python -m experiments.gpu --minutes 10 --out gpu.json

It needs torch (2.11 or newer) with Triton, NumPy, pydantic, PyYAML, jaxtyping, safetensors,
pyarrow, filelock, psutil and tqdm, in Python 3.11 to 3.13: no MLflow, Streamlit or registry.
Without a GPU it runs every part in small sizes, as a test. After each part it writes what it has.
A part that fails is recorded with its error, and the next one begins. When the time is over, the
parts that were not begun are named.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "platform"), str(ROOT)]
os.environ.setdefault("PYTHONPATH", os.pathsep.join(sys.path[:2]))

import torch  # noqa: E402 - the folders above must be known first

from experiments.gpu import checks, measures  # noqa: E402
from experiments.gpu.timing import Bench, Row  # noqa: E402

PARTS: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "equality with float64 on the processor": checks.equality,
    "training with FB15k-237's sizes, batch 1,024": measures.training,
    "loss over all entities, forward and backward": measures.losses,
    "TracIn with every parameter": measures.explanations,
    "language model on windows of 32,768 tokens": measures.language,
    "scan of a layer": measures.scans,
    "image sequences of 5 frames of 440 x 640": measures.images,
    "compiled training with FB15k-237's sizes": measures.compiled_training,
}


def describe(device: torch.device) -> dict[str, Any]:
    """Return what must be known to read the figures: card, versions, commit, processor."""
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found["compute_capability"] = f"{properties.major}.{properties.minor}"
        found["memory_gib"] = round(properties.total_memory / 1024**3, 1)
        found["cuda"] = torch.version.cuda
    git = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    try:
        found["commit"] = subprocess.run(git, capture_output=True, text=True, check=True).stdout
        found["commit"] = found["commit"].strip()
    except (OSError, subprocess.CalledProcessError):
        found["commit"] = os.environ.get("CLEW_COMMIT", "unknown")
    return found


def run_part(part: Callable[[Bench], Iterator[Row]], bench: Bench) -> dict[str, Any]:
    """Run one part until it ends, fails or the time is over."""
    begin, rows, error = time.perf_counter(), [], ""
    try:
        for row in part(bench):
            rows.append(row)
            cells = [f"{key}: {shown(value)}" for key, value in row.items()]
            print("   ", ", ".join(cells), flush=True)
            if bench.seconds_left < 0:
                error = "the time was over: the rest of this part is missing"
                break
    except Exception as failure:  # the other parts still run
        traceback.print_exc()
        error = f"{type(failure).__name__}: {failure}"
    return {"rows": rows, "error": error, "seconds": time.perf_counter() - begin}


def shown(value: object) -> str:
    """Return a value for a table."""
    return f"{value:,.4g}" if isinstance(value, float) else str(value)


def page(content: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    machine = content["machine"]
    lines = [f"# {machine['device']}, torch {machine['torch']}, commit {machine['commit'][:10]}"]
    for name, part in content["parts"].items():
        lines += ["", f"## {name}", ""]
        if part["rows"]:
            keys = list(dict.fromkeys(key for row in part["rows"] for key in row))
            lines += ["| " + " | ".join(keys) + " |", "|---" * len(keys) + "|"]
            for row in part["rows"]:
                lines.append("| " + " | ".join(shown(row.get(key, "")) for key in keys) + " |")
        if part["error"]:
            lines += ["", part["error"]]
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Run the parts, write the results, and return 1 if a check failed or a part has an error."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="stop after this time")
    parser.add_argument("--out", type=Path, default=Path("gpu.json"), help="JSON file to write")
    parser.add_argument("--only", default="", help="run only the parts whose name matches this")
    given = parser.parse_args(arguments)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    small = device.type == "cpu"
    bench = Bench(device, small=small, seconds=60 * given.minutes)
    content: dict[str, Any] = {"machine": describe(device), "small": small, "parts": {}}
    print(json.dumps(content["machine"]))
    for name, part in PARTS.items():
        if not re.search(given.only, name):
            continue
        print(name, flush=True)
        if bench.seconds_left <= 0:
            content["parts"][name] = {"rows": [], "error": "the time was over", "seconds": 0.0}
        else:
            content["parts"][name] = run_part(part, bench)
        given.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        given.out.with_suffix(".md").write_text(page(content), encoding="utf-8")
    print(f"written to {given.out} and {given.out.with_suffix('.md')}")
    parts = content["parts"].values()
    rows = [row for part in parts for row in part["rows"]]
    failed = any(part["error"] for part in parts) or not all(r.get("passed", True) for r in rows)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
