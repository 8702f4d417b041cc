"""What all benchmarks share: interleaved medians, children with their peak memory, results.

A result is a JSON file `results/<name>.json` with machine, commit, command and time of day beside
the figures. Alternatives are measured in the same run, turn by turn, so that what else the
machine does falls on all of them. From a tree with uncommitted changes nothing is recorded.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from clew.runs.hardware import (
    GIB,
    describe_machine,
    git_commit,
    process_peak_gib,
    why_no_result_file,
)

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path(__file__).resolve().parent / "results"
CHILD_RESULT = "RESULT "
COMMIT = git_commit()
"""Asked at the start: what is committed while a benchmark runs is not what it measures."""
SHORT_COMMIT = (COMMIT or "no-commit")[:12]
"""Part of the names of files that hold parts of a benchmark."""


def interleaved_seconds(
    alternatives: Mapping[str, Callable[[], object]], *, repeats: int, warm_ups: int = 1
) -> dict[str, list[float]]:
    """Return the seconds of each alternative, taking turns: `{name: [one a repeat]}`."""
    seconds: dict[str, list[float]] = {name: [] for name in alternatives}
    for turn in range(warm_ups + repeats):
        for name, function in alternatives.items():
            start = time.perf_counter()
            function()
            if turn >= warm_ups:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def median(values: Sequence[float]) -> float:
    """Return the median."""
    return statistics.median(values)


def resident_gib() -> float:
    """Return the resident size of this process now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / GIB


def run_child(
    name: str, *arguments: str, environment: Mapping[str, str] | None = None
) -> dict[str, object]:
    """Run a benchmark in a process of its own and return what it reported with `report_child`.

    Memory that one alternative leaves behind, and what it imports, then burden no other.
    """
    command = [sys.executable, "-m", f"experiments.benchmarks.{name}", *arguments]
    path = os.pathsep.join([str(ROOT / "platform"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    run = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    for line in reversed(run.stdout.splitlines()):
        if line.startswith(CHILD_RESULT):
            content: dict[str, object] = json.loads(line.removeprefix(CHILD_RESULT))
            return content
    raise RuntimeError(f"{' '.join(command)} ended with {run.returncode}: {run.stderr[-2000:]}")


def report_child(values: Mapping[str, object]) -> None:
    """Hand figures, and this process's peak memory, to the `run_child` that started it."""
    print(CHILD_RESULT + json.dumps({**values, "process_peak_gib": process_peak_gib()}))


def spread(values: Sequence[float]) -> dict[str, float | int]:
    """Return what a result keeps of a figure's rounds."""
    return {
        "median": median(values),
        "min": min(values),
        "max": max(values),
        "rounds": len(values),
    }


def result_file(name: str, part: str = "") -> Path:
    """Return where a benchmark's figures are kept, or those of a part of it."""
    return RESULTS / f"{name}{'-' if part else ''}{part}.json"


def write_results(
    name: str,
    results: object,
    *,
    part: str = "",
    figures: Mapping[str, Sequence[float]] | None = None,
    packages: Sequence[str] = (),
) -> Path | None:
    """Write figures with where they come from to `results/<name>.json`, say so, return the file.

    Args:
        name: The benchmark.
        results: Everything that was measured, as JSON values.
        part: What of the benchmark was measured, where each part has a file of its own.
        figures: What README quotes, by name: the value of each round.
        packages: Packages whose version matters.

    Returns:
        None where nothing may be recorded; the reason is printed.
    """
    path = result_file(name, part)
    reason = why_no_result_file(COMMIT)
    if reason:
        print(f"{path.relative_to(ROOT)} is not written: {reason}")
        return None
    RESULTS.mkdir(exist_ok=True)
    content = {
        "benchmark": name,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python", "-m", f"experiments.benchmarks.{name}", *sys.argv[1:]]),
        "commit": COMMIT,
        "machine": describe_machine().as_dict(),
        "packages": {package: version(package) for package in packages},
        "figures": {key: spread(values) for key, values in (figures or {}).items()},
        "results": results,
    }
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(f"written to {path.relative_to(ROOT)}")
    return path


def print_table(rows: Sequence[Mapping[str, object]]) -> None:
    """Print rows of the same keys as a table, numbers to four digits."""
    if not rows:
        return
    cells = [list(rows[0])] + [[_shown(value) for value in row.values()] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    for row in cells:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)))


def _shown(value: object) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else str(value)
