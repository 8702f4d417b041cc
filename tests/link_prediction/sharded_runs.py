"""Runs trainings of a small generated graph in several processes, and saves their results.

As a program it takes the runs as JSON: `sharded_runs.py '[{"folder": ..., ...}, ...]'`.
"""

import json
import os
import signal
import subprocess
import sys
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np
import torch

from clew.config.load import from_mapping
from clew.config.schema import RunConfig
from clew.errors import ClewError
from clew.influence.link_prediction.tracin import Tracer
from clew.link_prediction.task import LinkPrediction
from clew.link_prediction.triples import KnowledgeGraph
from clew.link_prediction.vocabulary import Vocabulary
from clew.runs.base import Tracker
from clew.training.distributed import joined_world, reporting_lost_peers, require_same
from clew.training.manifest import Manifest, list_checkpoints
from clew.training.progress import Watch
from clew.training.setup import build_trainer
from clew.workflows.explaining.trace_source import over_all_entities
from tests.memory_tracker import MemoryTracker
from tests.ports import meeting_place_for_forks

ROOT = Path(__file__).resolve().parents[2]
ENTITIES, RELATIONS = 23, 3
SIZES = {1: 12, 2: 6, 4: 3}
"""Microbatch size per process, by the number of processes; the total is always the same."""


@dataclass(frozen=True)
class Run:
    """One training: its folder, its number of processes and its settings."""

    folder: str
    processes: int = 1
    settings: dict[str, Any] = field(default_factory=dict)
    resume: str | None = None
    last_rank: Literal["trains", "dies", "hangs", "stops", "differs"] = "trains"
    """What the last process does in its second step; `differs`: it has other data."""
    entities: int = ENTITIES
    triples: int = 95


def run_all(runs: list[Run]) -> None:
    """Run trainings one after another in float64; one program imports torch once for all."""
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "platform"), str(ROOT), *sys.path]),
    }
    plan = json.dumps([asdict(run) for run in runs])
    command = [sys.executable, str(Path(__file__).resolve()), plan]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]


def fork(run: Run) -> None:
    """Run one training in child processes, with the variables that torchrun would set."""
    with meeting_place_for_forks() as place:
        children = []
        for rank in range(run.processes):
            child = os.fork()
            if child == 0:
                os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(run.processes)}
                os.environ |= place | {"LOCAL_RANK": str(rank)}
                _exit_after(run, rank)
            children.append(child)
        *others, last = children
        failed = [child for child in others if os.waitpid(child, 0)[1]]
        if run.last_rank == "hangs":
            os.kill(last, signal.SIGKILL)
        failed += [last] if os.waitpid(last, 0)[1] and run.last_rank != "dies" else []
    assert not failed or run.last_rank != "trains", f"{run}: {len(failed)} processes failed"
    if run.last_rank == "trains" and not (child := os.fork()):
        os.environ.pop("RANK", None)
        _exit_after(run, None)
    elif run.last_rank == "trains":
        assert os.waitpid(child, 0)[1] == 0, f"{run}: not explained"


def _exit_after(run: Run, rank: int | None) -> NoReturn:
    """Train as one of the processes, or explain the trained model if `rank` is None, and exit."""
    try:
        if rank is None:
            explain(run)
        else:
            train(run, rank)
    except ClewError as error:
        Path(run.folder).mkdir(exist_ok=True)
        (Path(run.folder) / f"error-{rank}.txt").write_text(f"{type(error).__name__}: {error}")
        os._exit(error.exit_code)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def graph(entities: int = ENTITIES, count: int = 95) -> KnowledgeGraph:
    """Return a small graph with triples in all splits."""
    generator = np.random.default_rng(0)
    sizes = (entities, RELATIONS, entities)
    triples = np.stack([generator.integers(0, n, count) for n in sizes], axis=1).astype(np.int32)
    valid, test = count * 65 // 95, count * 80 // 95
    return KnowledgeGraph(
        "generated",
        Vocabulary.from_names("entity", [f"e{i:02d}" for i in range(entities)]),
        Vocabulary.from_names("relation", [f"r{i}" for i in range(RELATIONS)]),
        triples[:valid],
        triples[valid:test],
        triples[test:],
    )


def configuration(settings: dict[str, Any]) -> RunConfig:
    """Return the configuration of a run without dropout."""
    small = {
        "model.kind": "distmult",
        "model.embedding_dim": 6,
        "model.entity_bias": True,
        "loss.implementation": "fused",
        "training.num_epochs": 1,
        "training.checkpoint_frequency": 1,
        "training.log_every_steps": 1,
        "training.device": "cpu",
        "training.max_grad_norm": 0.5,
        "optimizer.learning_rate": 0.01,
    }
    return from_mapping({"data": {"name": "generated"}}, small | settings)


def configured(run: Run) -> RunConfig:
    """Return the configuration of a run."""
    named = {key.replace("__", "."): value for key, value in run.settings.items()}
    named = {"training.batch_size": SIZES[run.processes]} | named
    return configuration(named | {"training.shard_entities": run.processes > 1})


@dataclass
class Failing(Watch):
    """Ends or stops the process in its second step."""

    how: str = ""
    steps: int = 0

    def before_step(self) -> None:
        """Fail before the second step."""
        self.steps += 1
        if self.steps == 2 and self.how == "dies":
            os._exit(9)
        if self.steps == 2 and self.how == "hangs":
            os.kill(os.getpid(), signal.SIGSTOP)
        if self.steps == 2 and self.how == "stops":
            os.kill(os.getpid(), signal.SIGTERM)


def explain(run: Run) -> None:
    """Write TracIn's scores of all training triples for a few test triples."""
    config = configured(run)
    task = LinkPrediction(graph(run.entities, run.triples), over_all_entities(config))
    tracer = Tracer(
        task,
        over_all_entities(config),
        settings=config.influence,
        checkpoints=list_checkpoints(Path(run.folder) / "checkpoints"),
        device=torch.device("cpu"),
    )
    tile = tracer.summation(task.graph.test[:4]).tile(np.arange(len(task.graph.train)))
    (Path(run.folder) / "scores.json").write_text(json.dumps(tile.influence.tolist()))


def train(run: Run, rank: int) -> None:
    """Train as one of the processes; the main process writes the measurements."""
    config = configured(run)
    is_last = rank == run.processes - 1
    folder, device = Path(run.folder), torch.device("cpu")
    timeout = config.training.peer_timeout_seconds
    if config.optimizations.use_mixed_precision:
        torch.set_default_dtype(torch.float32)
    with joined_world(timeout) as joined, reporting_lost_peers(joined):
        world = joined.sharing_tables() if config.training.shard_entities else joined
        task = LinkPrediction(graph(run.entities, run.triples), config)
        differs = is_last and run.last_rank == "differs"
        facts = {"data fingerprint": "other" if differs else task.data_fingerprint}
        require_same(world, facts)
        origin = Manifest(0, 0, 0.0, task.kind, config.model_dump(mode="json"), "", "")
        trainer = build_trainer(
            config,
            task,
            MemoryTracker() if world.is_main else Tracker(),
            device=device,
            world=world,
            folder=folder,
            origin=origin,
            keep_all_checkpoints=True,
            watch=Failing(how=run.last_rank) if is_last else None,
        )
        if run.resume is not None:
            trainer.checkpointer.resumable.restore(Path(run.resume))
        if world.exchange:
            world.exchange.received_bytes.clear()
        trainer.train()
        state = {
            "loss scale": trainer.precision.loss_scale,
            "step": trainer.progress.step,
            "relations": trainer.model.relation.weight.tolist(),
        }
        (folder / f"rank-{rank}.json").write_text(json.dumps(state))
        received = dict(world.exchange.received_bytes) if world.exchange else {}
        metrics = task.metrics(trainer.model, "test", device) if world.evaluates else {}
        if world.is_main:
            values: dict[str, Any] = {"metrics": metrics}
            for key in ("train/loss", "train/grad_norm", "valid/mrr"):
                values[key] = [e.value for e in trainer.history.entries if e.key == key]
            values["training bytes"] = received
            (folder / "measured.json").write_text(json.dumps(values))


if __name__ == "__main__":
    import torch._dynamo  # every optimizer imports it: import it once before the forks

    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    for planned in json.loads(sys.argv[1]):
        fork(Run(**planned))
