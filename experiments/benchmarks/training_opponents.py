"""Compares training and validation with an independent loop and with PyKEEN, on the bundled UMLS.

    python -m experiments.benchmarks.training_opponents [minutes] [epochs]

It runs in `.venv-opponents` (`make opponents`). Clew's trainer with its tracking store, the loop of
`opponent_loop`, and PyKEEN's LCWA loop train the same model: ConvE with 200 numbers, or ComplEx
with 200 complex numbers, per entity; all training tails of a query in one row; binary cross entropy
with smoothing 0.1; Adam with a constant rate; the same epochs and threads. The loop and PyKEEN do
not train the models of Clew: they have their own.

One process per program stays alive, with the same settings of allocator and threads. In each round,
the programs take turns: a whole training at batch size 128, with a validation that is timed apart,
and a few epochs at the batch sizes of a sweep, without the first epoch. Each round gives a ratio of
seconds for each opponent, at the same batch size and with each program at its own fastest one. The
smallest and the largest of n ratios hold the median with a probability of 1 - 2^(1-n). Rounds end
when the time is over; what was measured is written.

Where there is a C++ compiler, the largest batch size is also measured with `torch.compile`: Clew's
own setting; model and loss of the loop; the scores of PyKEEN's ConvE, which has no such setting.
Compiling is timed apart, for the opponents as the seconds until the end of the first epoch beyond a
later one. Nothing compiled is there when a program begins; its later rounds find what the first
one compiled.
"""

import itertools
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from clew.training.memory import keep_allocator_pages
from experiments.benchmarks import opponent_loop
from experiments.benchmarks.harness import (
    ROOT,
    Worker,
    asked_for,
    median,
    print_table,
    report_child,
    write_results,
)

NAME = "training_opponents"
UMLS = ROOT / "platform/clew/link_prediction/bundled/umls"
CLEW, LOOP, PYKEEN = "Clew", "loop", "PyKEEN 1.11.1"
MODELS = ("conve", "complex")
RATES = {"conve": 0.003, "complex": 0.01}
EPOCHS = {"conve": 25, "complex": 40}
BATCH, SWEEP, SWEEP_EPOCHS = 128, (128, 256, 512), 3
COMPILED = SWEEP[-1:] if any(map(shutil.which, ("g++", "c++", "clang++"))) else ()
"""Batch sizes that are also measured with torch.compile."""
DIM, SMOOTHING, THREADS = 200, 0.1, 2
ROUNDS, MINUTES = 5, 9.0
DOES_NOT_COMPILE = (PYKEEN, "complex")
"""Dynamo fails in `torch.view_as_complex`: "Tensor must have a last dimension of size 2"."""
NOT_MEASURED = "LibKGE: the package registry does not have it; torch.compile: " + (
    "it fails for PyKEEN's ComplEx, in view_as_complex" if COMPILED else "no C++ compiler on PATH"
)


@dataclass(frozen=True)
class Case:
    """One training."""

    model: str
    batch: int
    epochs: int
    seed: int
    validated: bool
    compiled: bool = False


@dataclass(frozen=True)
class Measured:
    """Seconds of each epoch, or of all as one number; the validation's seconds and MRR."""

    seconds: list[float]
    validation_seconds: float | None = None
    mrr: float | None = None
    compile_seconds: float | None = None
    graph_breaks: int | None = None
    """How many times torch.compile left a part of the model uncompiled."""
    process_peak_gib: float = 0.0
    """Of the process until now, so not of this training alone."""


def validated(case: Case, seconds: list[float], validate: Callable[[], float]) -> Measured:
    """Validate twice, because the first one also builds filters, and time the second one."""
    if not case.validated:
        return Measured(seconds)
    validate()
    start = time.perf_counter()
    mrr = validate()
    return Measured(seconds, time.perf_counter() - start, mrr)


def train_with_loop(case: Case) -> Measured:
    """Train with the independent loop."""
    graph = opponent_loop.Graph(UMLS)
    model = opponent_loop.MODELS[case.model](graph.entities, graph.relations, DIM)
    epochs = opponent_loop.train(
        model,
        graph.rows("k_vs_all"),
        optimizer=torch.optim.Adam(model.parameters(), lr=RATES[case.model], fused=True),
        loss=partial(opponent_loop.loss_of, smoothing=SMOOTHING),
        batch=case.batch,
        compiled=case.compiled,
    )
    seconds = list(itertools.islice(epochs, case.epochs))
    return validated(
        case, seconds, lambda: float((1 / opponent_loop.ranks(model, graph, "valid")).mean())
    )


def train_with_clew(case: Case) -> Measured:
    """Train with Clew's trainer and a new tracking store; heartbeats and logging are included."""
    from clew import names
    from clew.config.data import TripleData
    from clew.config.load import from_mapping
    from clew.link_prediction.sources import load_graph
    from clew.link_prediction.task import LinkPrediction
    from clew.runs.mlflow_store import open_tracker
    from clew.training.distributed import World
    from clew.training.manifest import Manifest
    from clew.training.setup import build_trainer, measure_before_training

    numbers = DIM * (2 if case.model == "complex" else 1)
    config = from_mapping(
        {"data": {"name": "umls"}, "model": {"kind": case.model, "embedding_dim": numbers}},
        {
            "loss.kind": "kvs_all",
            "loss.function": "binary_cross_entropy",
            "loss.label_smoothing": SMOOTHING,
            "optimizer.kind": "adam",
            "optimizer.learning_rate": RATES[case.model],
            "schedule.kind": "constant",
            "training.batch_size": case.batch,
            "training.num_epochs": case.epochs,
            "training.seed": case.seed,
            "training.device": "cpu",
            "training.checkpoint_frequency": 0,
            "evaluation.enabled": False,
            "optimizations.torch_compile": case.compiled,
        },
    )
    task = LinkPrediction(load_graph(TripleData(name="umls")), config)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder}/mlflow.db"
        os.environ["CLEW_SPOOL"] = f"{folder}/spool"
        with open_tracker(config.tracking, kind="train", run_name="benchmark") as tracker:
            trainer = build_trainer(
                config,
                task,
                tracker,
                device=torch.device("cpu"),
                world=World(),
                folder=Path(folder),
                origin=Manifest(0, 0, 0.0, "link_prediction", {}, "", ""),
            )
            before = measure_before_training(trainer)
            seconds, closed = [time.perf_counter()], trainer.throughput.close_epoch

            def close_epoch() -> dict[str, float]:
                seconds.append(time.perf_counter())
                return closed()

            trainer.throughput.close_epoch = close_epoch  # type: ignore[method-assign]
            trainer.train()
            seconds[-1] = time.perf_counter()  # with the end of the training
    epochs = [end - start for start, end in itertools.pairwise(seconds)]
    model, key = trainer.model.eval(), names.metric("valid", names.MRR)
    found = validated(case, epochs, lambda: task.rank(model, "valid").metrics("valid")[key])
    return replace(found, compile_seconds=before.get(names.TIME_COMPILE_SECONDS))


def train_with_pykeen(case: Case) -> Measured:
    """Train PyKEEN's model with its LCWA loop, and the settings of the others."""
    from pykeen.evaluation import RankBasedEvaluator
    from pykeen.models import ComplEx, ConvE
    from pykeen.training import LCWATrainingLoop
    from pykeen.training.callbacks import TrainingCallback
    from pykeen.triples import TriplesFactory

    train = TriplesFactory.from_path(UMLS / "train.txt", create_inverse_triples=True)
    valid, test = (
        TriplesFactory.from_path(
            UMLS / f"{split}.txt",
            entity_to_id=train.entity_to_id,
            relation_to_id=train.relation_to_id,
        ).mapped_triples
        for split in ("valid", "test")
    )
    common: dict[str, Any] = {
        "triples_factory": train,
        "loss": "bcewithlogits",
        "random_seed": case.seed,
    }
    if case.model == "conve":
        model: ConvE | ComplEx = ConvE(
            embedding_dim=DIM,
            output_channels=32,
            embedding_height=10,
            embedding_width=DIM // 10,
            **common,
        )
    else:
        small = partial(torch.nn.init.normal_, std=0.1)
        model = ComplEx(
            embedding_dim=DIM,
            entity_initializer=small,
            relation_initializer=small,
            regularizer=None,
            **common,
        )
    ends = [time.perf_counter()]

    class Clock(TrainingCallback):  # type: ignore[misc,unused-ignore]
        """Notes when an epoch starts and ends."""

        def pre_step(self, **others: object) -> None:
            if len(ends) == 1 and not hasattr(self, "started"):
                self.started, ends[0] = True, time.perf_counter()

        def post_epoch(self, *args: object, **others: object) -> None:
            ends.append(time.perf_counter())

    loop = LCWATrainingLoop(
        model=model,
        triples_factory=train,
        optimizer=torch.optim.Adam(model.parameters(), lr=RATES[case.model]),
    )
    if case.compiled:
        loop.score_method = torch.compile(loop.score_method)
    began = time.perf_counter()
    loop.train(
        train,
        num_epochs=case.epochs,
        batch_size=case.batch,
        label_smoothing=SMOOTHING,
        use_tqdm=False,
        use_tqdm_batch=False,
        pin_memory=False,
        callbacks=Clock(),
    )
    evaluator = RankBasedEvaluator(filtered=True)

    def validate() -> float:
        known = [train.mapped_triples, test]
        found = evaluator.evaluate(
            model, valid, batch_size=512, use_tqdm=False, additional_filter_triples=known
        )
        return float(found.get_metric("both.realistic.inverse_harmonic_mean_rank"))

    seconds = [end - start for start, end in itertools.pairwise(ends)]
    found = validated(case, seconds, validate)
    first = ends[1] - began  # the clock of epochs starts after the first scores
    return replace(found, compile_seconds=first - epoch_seconds(found))


PROGRAMS = {CLEW: train_with_clew, LOOP: train_with_loop, PYKEEN: train_with_pykeen}


def run_compiled(program: str, case: Case) -> Measured:
    """Train a case with nothing compiled in this process before, and count what was left out."""
    from torch._dynamo import reset
    from torch._dynamo.utils import counters

    reset()
    counters.clear()
    found = PROGRAMS[program](case)
    first = found.seconds[0] - epoch_seconds(found)
    return replace(
        found,
        compile_seconds=first if found.compile_seconds is None else found.compile_seconds,
        graph_breaks=sum(counters["graph_break"].values()),
    )


def work(program: str) -> None:
    """Train each case that is asked for, and report what was measured."""
    keep_allocator_pages()
    torch.set_num_threads(THREADS)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        for asked in asked_for():
            case = Case(**asked)
            torch.manual_seed(case.seed)
            found = run_compiled(program, case) if case.compiled else PROGRAMS[program](case)
            report_child(asdict(found))


def cases(seed: int, epochs: dict[str, int]) -> list[Case]:
    """Return the trainings of one round: the whole ones, the sweep's other sizes, compiled ones."""
    sizes = [size for size in SWEEP if size != BATCH]
    whole = [Case(model, BATCH, epochs[model], seed, validated=True) for model in MODELS]
    swept = [Case(m, size, SWEEP_EPOCHS, seed, validated=False) for m in MODELS for size in sizes]
    compiled = [
        Case(m, size, SWEEP_EPOCHS, seed, validated=False, compiled=True)
        for m in MODELS
        for size in COMPILED
    ]
    return whole + swept + compiled


Variant = tuple[str, int, bool]
"""A model, its batch size, and whether it is compiled."""
Rounds = dict[Variant, list[dict[str, Measured]]]
"""What each program measured in each round."""


def measure(deadline: float, epochs: dict[str, int]) -> Rounds:
    """Measure in rounds until the time is over; a case counts once all programs have done it."""
    workers = {program: Worker(NAME, program) for program in PROGRAMS}
    found: Rounds = {}
    longest: dict[Variant, float] = {}
    for worker in workers.values():
        for model in MODELS:  # imports and first calls
            worker.ask(asdict(Case(model, SWEEP[-1], 1, 0, validated=False)))
    for seed in range(ROUNDS):
        for case in cases(seed, epochs):
            key, start = (case.model, case.batch, case.compiled), time.monotonic()
            if start + longest.get(key, 0.0) > deadline:
                continue
            able = [n for n in workers if not case.compiled or (n, case.model) != DOES_NOT_COMPILE]
            order = able if seed % 2 == 0 else able[::-1]
            told = {name: workers[name].ask(asdict(case)) for name in order}
            found.setdefault(key, []).append({n: Measured(**told[n]) for n in order})
            longest[key] = time.monotonic() - start
            print(f"round {seed + 1}: {title(key)}", flush=True)
    for worker in workers.values():
        worker.close()
    return found


def epoch_seconds(measured: Measured) -> float:
    """Return the median seconds of an epoch without the first one."""
    return median(measured.seconds[1:] or measured.seconds)


def title(variant: Variant) -> str:
    """Return the name of a variant in figures."""
    model, size, compiled = variant
    return f"{model}, batch {size}{', compiled' if compiled else ''}"


def tables(found: Rounds) -> tuple[list[dict[str, object]], dict[str, list[float]]]:
    """Return a row for each program and batch size, and figures: ratios and whole trainings."""
    queries = len(opponent_loop.Graph(UMLS).rows("k_vs_all")[0])
    rows: list[dict[str, object]] = []
    figures: dict[str, list[float]] = {}
    for (model, size, compiled), rounds in sorted(found.items()):
        name = title((model, size, compiled))
        for program in (program for program in PROGRAMS if program in rounds[0]):
            runs = [measured[program] for measured in rounds]
            speeds = [queries / epoch_seconds(run) for run in runs]
            whole = [run for run in runs if run.mrr is not None]
            row: dict[str, object] = {
                "model": model,
                "batch": size,
                "compiled": compiled,
                "program": program,
                "rounds": len(runs),
                "queries/s": median(speeds),
            }
            if whole:
                row["s, training"] = median([sum(run.seconds) for run in whole])
                row["s, validation"] = median([run.validation_seconds or 0.0 for run in whole])
                row["MRR"] = median([run.mrr or 0.0 for run in whole])
                figures[f"{model}, {program}, s of training"] = [sum(r.seconds) for r in whole]
                figures[f"{model}, {program}, s of validation"] = [
                    r.validation_seconds or 0.0 for r in whole
                ]
                figures[f"{model}, {program}, MRR"] = [r.mrr or 0.0 for r in whole]
            if compiled:
                seconds = [run.compile_seconds or 0.0 for run in runs]
                row["s, compiling"] = seconds[0]
                row["graph breaks"] = runs[0].graph_breaks
                figures[f"{name}, {program}, s of compiling"] = seconds
            if program != CLEW:
                ratios = [
                    epoch_seconds(measured[program]) / epoch_seconds(measured[CLEW])
                    for measured in rounds
                ]
                row["times Clew's s"] = median(ratios)
                figures[f"{name}, {program}, times Clew's seconds"] = ratios
            rows.append(row)
    for model in MODELS:
        figures |= fastest(model, [rounds for key, rounds in found.items() if key[0] == model])
    return rows, figures


def fastest(model: str, variants: list[list[dict[str, Measured]]]) -> dict[str, list[float]]:
    """Return each opponent's ratios with every program at its own fastest variant."""
    if not variants:
        return {}
    num_rounds = min(len(rounds) for rounds in variants)

    def best(program: str) -> list[float]:
        timed = [
            [epoch_seconds(found[program]) for found in rounds]
            for rounds in variants
            if program in rounds[0]
        ]
        return min(timed, key=median)[:num_rounds]

    return {
        f"{model}, own fastest variant, {program}, times Clew's seconds": [
            theirs / ours for theirs, ours in zip(best(program), best(CLEW), strict=True)
        ]
        for program in (LOOP, PYKEEN)
    }


def main(minutes: float, epochs: dict[str, int]) -> None:
    """Measure until the time is over, and print and write the results."""
    found = measure(time.monotonic() + 60 * minutes, epochs)
    if not found:
        raise SystemExit(f"no round ended within {minutes:g} minutes; give more")
    rows, figures = tables(found)
    keys = {key: "-" for row in rows for key in row}
    print_table([keys | row for row in rows])
    results = {
        "threads": THREADS,
        "epochs": epochs,
        "learning rates": RATES,
        "not measured": NOT_MEASURED,
        "cases": rows,
    }
    write_results(NAME, results, figures=figures, packages=["torch", "pykeen"])


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        work(sys.argv[2])
    else:
        asked = {m: int(sys.argv[2]) for m in MODELS} if len(sys.argv) > 2 else EPOCHS
        main(float(sys.argv[1]) if len(sys.argv) > 1 else MINUTES, asked)
