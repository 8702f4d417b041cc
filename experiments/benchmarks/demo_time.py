"""Measures how long `make demo` takes after the installation.

    python -m experiments.benchmarks.demo_time [rounds]

Each round runs `clew demo` in a new process with an empty tracking store: two runs of ConvE on
the bundled graph, evaluation, ten explanations, a check of one and a promotion.
"""

import os
import subprocess
import sys
import tempfile
import time

from experiments.benchmarks.harness import ROOT, print_table, write_results

NAME = "demo_time"


def seconds_of_a_demo() -> float:
    """Run the demo once and return its wall-clock seconds."""
    with tempfile.TemporaryDirectory(prefix="clew-demo-") as folder:
        # Without the results that an earlier demo keeps in the cache.
        environment = os.environ | {
            "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db",
            "XDG_CACHE_HOME": folder,
        }
        command = [sys.executable, "-m", "clew", "demo"]
        started = time.perf_counter()
        subprocess.run(command, cwd=ROOT, env=environment, check=True)
        return time.perf_counter() - started


def main(rounds: int) -> None:
    """Measure all rounds, and print and write the results."""
    seconds = [seconds_of_a_demo() for _ in range(rounds)]
    print_table([{"round": turn, "seconds": value} for turn, value in enumerate(seconds)])
    write_results(NAME, {"rounds": rounds}, figures={"seconds": seconds})


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 3)
