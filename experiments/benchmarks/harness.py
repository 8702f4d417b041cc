"""Shared functions of the benchmarks: interleaved timing, child processes and result files.

A result is a JSON file `results/<name>.json` with the figures, the machine, the commit, the command
and the time. Alternatives are measured in turns in the same run, so that the load of other programs
affects all of them. Nothing is recorded from a tree with uncommitted changes.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from clew.runs.hardware import (
    GIB,
    describe_machine,
    git_commit,
    prepare_threads,
    process_peak_gib,
    why_no_result_file,
)
from experiments.figures import digests

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path(__file__).resolve().parent / "results"
CHILD_RESULT = "RESULT "
CPUINFO = Path("/proc/cpuinfo")
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
COMMIT = git_commit()
"""Read at import: a commit that is made while a benchmark runs is not the one it measures."""
SHORT_COMMIT = (COMMIT or "no-commit")[:12]
"""Used in the names of files that save parts of a benchmark."""
LOAD_BEFORE = os.getloadavg()
INSTRUCTION_SETS = ("avx2", "avx512f", "avx512_bf16", "amx_tile", "amx_bf16")
"""What decides the speed of matrix products, by their names in /proc/cpuinfo."""


def processor(cpuinfo: Path = CPUINFO, caches: Path = CACHES) -> dict[str, object]:
    """Return what tells two processors of the same name apart; unknown values are left out.

    These are family, model and stepping, the sizes of one core's caches (`L3 Unified: 32768K`),
    and which of INSTRUCTION_SETS it has.
    """
    try:
        lines = cpuinfo.read_text(encoding="utf-8").split("\n\n")[0].splitlines()
    except OSError:  # not Linux
        return {}
    told = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    found: dict[str, object] = {
        name: int(told[key])
        for name, key in (("family", "cpu family"), ("model", "model"), ("stepping", "stepping"))
        if key in told
    }
    flags = told.get("flags", "").split()
    found["instruction_sets"] = [name for name in INSTRUCTION_SETS if name in flags]
    for folder in sorted(caches.glob("index*")):
        level, kind, size = (
            (folder / name).read_text(encoding="ascii").strip()
            for name in ("level", "type", "size")
        )
        found[f"L{level} {kind}"] = size
    return found


def load() -> dict[str, Sequence[float]]:
    """Return the load averages over 1, 5 and 15 minutes: when the program began, and now."""
    return {"before": LOAD_BEFORE, "after": os.getloadavg()}


def interleaved_seconds(
    alternatives: Mapping[str, Callable[[], object]], *, repeats: int, warm_ups: int = 1
) -> dict[str, list[float]]:
    """Run the alternatives in turns, and return the seconds of each repeat: `{name: [...]}`."""
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
    """Return the current resident size of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / GIB


def run_child(
    name: str, *arguments: str, environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Run a benchmark in a new process, and return the values it gave to `report_child`.

    The memory and the imports of one alternative then do not affect the others.
    """
    command = [sys.executable, "-m", f"experiments.benchmarks.{name}", *arguments]
    run = subprocess.run(
        command,
        cwd=ROOT,
        env=_environment() | dict(environment or {}),
        capture_output=True,
        text=True,
        check=False,
    )
    for line in reversed(run.stdout.splitlines()):
        if line.startswith(CHILD_RESULT):
            return _reported(line)
    raise RuntimeError(f"{' '.join(command)} ended with {run.returncode}: {run.stderr[-2000:]}")


def report_child(values: Mapping[str, object]) -> None:
    """Send figures and the peak memory of this process to the `run_child` that started it."""
    found = {**values, "process_peak_gib": process_peak_gib()}
    print(CHILD_RESULT + json.dumps(found), flush=True)


class Worker:
    """A process of a benchmark that stays alive and measures what it is asked to.

    Imports and first calls then happen once, and programs can take turns in short rounds. Idle
    threads sleep, as in `clew`, so that a process that waits does not disturb the others.
    """

    def __init__(self, name: str, *arguments: str) -> None:
        environment = _environment()
        prepare_threads(environment)
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"experiments.benchmarks.{name}", "worker", *arguments],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, question: Mapping[str, object]) -> dict[str, Any]:
        """Send a question, and return the values that the process gives to `report_child`."""
        asked, told = self._process.stdin, self._process.stdout
        assert asked is not None
        assert told is not None
        asked.write(json.dumps(question) + "\n")
        asked.flush()
        for line in told:
            if line.startswith(CHILD_RESULT):
                return _reported(line)
        raise RuntimeError(f"{self._process.args!r} ended with {self._process.wait()}")

    def close(self) -> None:
        """Let the process end."""
        self._process.communicate()


def asked_for() -> Iterator[dict[str, Any]]:
    """Yield the questions that a `Worker` sends to this process."""
    return map(json.loads, sys.stdin)


def _reported(line: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(line.removeprefix(CHILD_RESULT))
    return found


def _environment() -> dict[str, str]:
    path = os.pathsep.join([str(ROOT / "platform"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path}


def spread(values: Sequence[float]) -> dict[str, float | int]:
    """Return the summary of a figure's rounds that a result file contains."""
    return {
        "median": median(values),
        "min": min(values),
        "max": max(values),
        "rounds": len(values),
    }


def result_file(name: str, part: str = "") -> Path:
    """Return the result file of a benchmark, or of one part of it."""
    return RESULTS / f"{name}{'-' if part else ''}{part}.json"


def write_results(
    name: str,
    results: object,
    *,
    part: str = "",
    figures: Mapping[str, Sequence[float]] | None = None,
    packages: Sequence[str] = (),
) -> Path | None:
    """Write figures and their origin to `results/<name>.json`, print the path and return it.

    Args:
        name: The name of the benchmark.
        results: All measurements, as JSON values.
        part: The part of the benchmark that was measured, if each part has its own file.
        figures: The figures that README can quote, by name: the value of each round.
        packages: The packages whose versions are recorded.

    Returns:
        The file, or None if nothing can be recorded; the reason is then printed.
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
        "code": digests(name),
        "machine": describe_machine().as_dict() | {"processor": processor(), "load": load()},
        "packages": {package: version(package) for package in packages},
        "figures": {key: spread(values) for key, values in (figures or {}).items()},
        "results": results,
    }
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(f"written to {path.relative_to(ROOT)}")
    return path


def print_table(rows: Sequence[Mapping[str, object]]) -> None:
    """Print rows with the same keys as a table, with numbers to four digits."""
    if not rows:
        return
    cells = [list(rows[0])] + [[_shown(value) for value in row.values()] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    for row in cells:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)))


def _shown(value: object) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else str(value)
