"""Kills commands at random moments, and checks the results of repeating them.

    python -m tests.attack.random_kills FOLDER --kills 50 --seed 0

runs the real program: it trains, explains and promotes on a small graph in a new store, and packs a
larger graph. Each command is killed (SIGKILL) at a random moment of its usual run time, and then
repeated, a training with `--resume`. The result must be equal, bit for bit, to that of a command
that was not killed. After `clew sync`, only runs of trainings that started from the beginning
again, and of processes that died before their run had a folder, may be RUNNING.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import time
from hashlib import sha256
from pathlib import Path

from mlflow import MlflowClient

from tests.attack.dying import digests
from tests.attack.material import SPLITS, write_graph
from tests.recorded import ROOT

COMMANDS = ("train", "tracin", "promote", "data")
PACKED_TRIPLES = 400_000
SMALL = (
    "--embedding-dim=16",
    "--output-channels=4",
    "--num-epochs=12",
    "training.device=cpu",
    "training.checkpoint_frequency=1",
    "tracking.log_mfu=false",
)


class Attack:
    """A small graph, a store, and the result of each command without a kill."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.uri = f"sqlite:///{folder / 'mlflow.db'}"
        self.environment = os.environ | {
            "MLFLOW_TRACKING_URI": self.uri,
            "CLEW_SPOOL": str(folder / "spool"),
            "CLEW_DATA": str(folder),
            "PYTHONPATH": f"{ROOT / 'platform'}:{ROOT}",
            "OMP_NUM_THREADS": "1",
        }
        write_graph(folder / "graph")
        write_large_graph(folder / "large")
        self.seconds: dict[str, float] = {}
        self.right: dict[str, object] = {}
        self.run_id = ""
        for command in COMMANDS:
            started = time.monotonic()
            assert self.start(command, "whole").wait() == 0, command
            self.seconds[command] = time.monotonic() - started
            self.right[command] = self.result(command, "whole")
            if command == "train":
                manifest = folder / "whole/best/manifest.json"
                self.run_id = json.loads(manifest.read_text())["run_id"]

    def start(self, command: str, name: str, *, again: bool = False) -> subprocess.Popen[bytes]:
        """Start a command that writes results of this name; `again` means after a kill."""
        kept = self.folder / name
        match command:
            case "train" if again and any(kept.glob("checkpoints/epoch-*/manifest.json")):
                words = ["--resume", f"--checkpoint-dir={kept}"]
            case "train":
                shutil.rmtree(kept, ignore_errors=True)
                files = [f"--{split}={self.folder}/graph/{split}.txt" for split in SPLITS]
                words = [*files, *SMALL, f"--checkpoint-dir={kept}"]
            case "tracin":
                test = f"--test={self.folder}/graph/test.txt"
                words = [f"--model={self.run_id}", test, f"--output={kept}-influence"]
            case "data":
                words = ["--name=large", f"--pack={kept}-packed"]
            case _:
                words = [f"--run-id={self.run_id}", f"--name={name}", "--force=to be killed"]
        return subprocess.Popen(
            [sys.executable, "-m", "clew", command, *words],
            env=self.environment,
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def result(self, command: str, name: str) -> object:
        """Return the result of a command without its measurements."""
        match command:
            case "train":
                return digests(self.folder / name)
            case "tracin":
                path = self.folder / f"{name}-influence/influence.json"
                return json.loads(path.read_text())["tests"]
            case "data":
                return sha256((self.folder / f"{name}-packed").read_bytes()).hexdigest()
            case _:
                client = MlflowClient(self.uri)
                version = client.get_model_version_by_alias(name, "champion")
                return version.run_id, dict(client.get_registered_model(name).aliases)

    def kill(self, command: str, name: str, after_seconds: float) -> str:
        """Kill a command, repeat it, and return the outcome."""
        process = self.start(command, name)
        try:
            process.wait(after_seconds)
        except subprocess.TimeoutExpired:
            process.kill()
        if process.wait() == 0:
            return "was faster"
        if code := self.start(command, name, again=True).wait():
            return f"LOST: exit code {code}"
        same = self.result(command, name) == self.right[command]
        return "equal" if same else "OTHER RESULT"

    def num_running(self) -> int:
        """Return the number of RUNNING runs after everything has been sent."""
        sync = [sys.executable, "-m", "clew", "sync"]
        subprocess.run(sync, env=self.environment, check=True, stdout=subprocess.DEVNULL)
        client = MlflowClient(self.uri)
        experiments = [e.experiment_id for e in client.search_experiments()]
        return len(client.search_runs(experiments, "attributes.status = 'RUNNING'"))


def write_large_graph(folder: Path) -> None:
    """Write a random graph that takes seconds to pack."""
    folder.mkdir()
    draw = random.Random(0)
    for split, count in {"train": PACKED_TRIPLES, "valid": 100, "test": 100}.items():
        with (folder / f"{split}.txt").open("w") as file:
            for _ in range(count):
                head, tail = draw.randrange(PACKED_TRIPLES), draw.randrange(PACKED_TRIPLES)
                file.write(f"entity {head}\trelation {draw.randrange(9)}\tentity {tail}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    attack, draw = Attack(given.folder.resolve()), random.Random(given.seed)
    counts: dict[str, int] = {}
    for number in range(given.kills):
        command = COMMANDS[number % len(COMMANDS)]
        moment = draw.uniform(0.0, attack.seconds[command])
        outcome = attack.kill(command, f"killed-{number}", moment)
        sys.stdout.write(f"{number} {command} after {moment:.1f} s: {outcome}\n")
        sys.stdout.flush()
        counts[outcome] = counts.get(outcome, 0) + 1
    sys.stdout.write(f"{counts}, {attack.num_running()} runs say RUNNING\n")


if __name__ == "__main__":
    main()
