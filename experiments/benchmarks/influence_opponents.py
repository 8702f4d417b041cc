"""Compares TracIn with captum, dattri and kronfluence at one checkpoint of ConvE.

    python -m experiments.benchmarks.influence_opponents [minutes] [share of the rows]

It runs in `.venv-opponents` (`make opponents`). The model has FB15k-237's sizes and random weights.
The opponents get the ConvE of `opponent_loop` with the same weights, so nothing of Clew runs in
their processes' timed parts; rows, loss and tests are the same. Each opponent has its own case: the
parameters that it can explain, and as many rows and tests as it computes in some seconds. Clew
explains the same parameters for the same rows and tests; nothing is extrapolated.

First, scores are compared. Where the method is the same, they must agree to 0.1 % of the largest;
for random projections, the correlation is shown. Then the processes take turns. The first round
tries the batch sizes of a stated sweep, and each opponent goes on with its fastest. The smallest
and the largest of n ratios hold the median with a probability of 1 - 2^(1-n). Rounds end when the
time is over; what was measured is written.

Differences: captum's fast forms explain the weight of the last layer without its bias, so the model
of their cases has no such bias. dattri 0.3.0 always projects gradients to 512 random numbers; the
projection is turned off, since on a CPU it takes longer than the exact products. kronfluence's
`identity` strategy makes its scores inner products of gradients, for linear and convolution layers;
it explains the last two linear layers here.
"""

import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from clew.config.graph_models import ConvEModel
from clew.influence.link_prediction.rows import Directions, LossForm, own_rows, training_rows
from clew.influence.link_prediction.traced_run import (
    GraphModelCheckpoint,
    KernelOptions,
    TripleRows,
)
from clew.influence.link_prediction.tracin import plan_tiles, tiles
from clew.influence.summation import Summation, explain_in_tiles
from clew.link_prediction.models.conve import ConvE
from clew.training.memory import MemoryCleanup, keep_allocator_pages
from experiments.benchmarks import opponent_loop
from experiments.benchmarks.harness import (
    Worker,
    asked_for,
    median,
    print_table,
    report_child,
    write_results,
)
from experiments.benchmarks.influence_speed import (
    BUDGET_MIB,
    CPU,
    ENTITIES,
    RELATIONS,
    SMOOTHING,
    columns,
    row_losses,
    triples,
)

NAME = "influence_opponents"
ROUNDS, MINUTES, THREADS = 5, 6.5, 2
COMPARED = 8
"""Number of rows and of tests whose scores are compared."""
TOLERANCE = 1e-3
PROJECTED_NUMBERS = 1024
FAST, PROJECTED = "captum 0.9.0 TracInCPFast", "captum 0.9.0 TracInCPFastRandProj"
DATTRI, KRONFLUENCE = "dattri 0.3.0 TracInAttributor", "kronfluence 1.0.1, identity"
DEPTHS = {"last layer": 1, "last two layers": 2, "every parameter": 3}
"""What is explained, and the `influence.num_last_layers` that makes Clew explain the same."""


@dataclass(frozen=True)
class Case:
    """An opponent with what it explains, for how many training rows and tests."""

    opponent: str
    explained: str
    rows: int
    tests: int
    batches: tuple[int, ...]
    bias: bool = True
    exact: bool = True


CASES = (
    Case(FAST, "last layer", 8192, 100, (512, 2048), bias=False),
    Case(PROJECTED, "last layer", 2048, 100, (2048,), bias=False, exact=False),
    Case(KRONFLUENCE, "last two layers", 512, 32, (32, 128)),
    Case(DATTRI, "every parameter", 32, 8, (8, 32)),
)


@dataclass(frozen=True)
class Question:
    """What a process computes: a case, or Clew's side of it, with one batch size."""

    case: Case
    batch: int

    @classmethod
    def read(cls, asked: Mapping[str, object]) -> "Question":
        """Return the question for the JSON of `asdict`."""
        case, batch = asked["case"], asked["batch"]
        assert isinstance(case, dict)
        assert isinstance(batch, int)
        return cls(Case(**case), batch)


Scores = tuple[float, np.ndarray]
"""Seconds for all rows, and scores `(test, row)` of at least the first COMPARED."""


def clew_network(*, bias: bool) -> ConvE:
    """Return Clew's ConvE, with running statistics from some forward passes."""
    torch.manual_seed(0)
    model = ConvE(ENTITIES, RELATIONS, ConvEModel(entity_bias=bias)).train()
    rows = torch.from_numpy(triples(2048, 7).astype(np.int64))
    with torch.no_grad():
        for _ in range(20):
            model.queries(rows[:, 0], rows[:, 1])
        if bias:
            assert model.entity_bias is not None
            model.entity_bias.normal_(std=0.1)
    return model.eval()


def copied(ours: ConvE) -> opponent_loop.ConvE:
    """Return the loop's ConvE with the weights and statistics of Clew's."""
    config = ours.config
    theirs = opponent_loop.ConvE(
        ours.entity.num_embeddings,
        ours.relation.num_embeddings,
        config.embedding_dim,
        config.height,
    )
    pairs: list[tuple[nn.Module, nn.Module]] = [
        (ours.entity, theirs.entity),
        (ours.relation, theirs.relation),
        (ours.input_norm, theirs.image[0]),
        (ours.convolution, theirs.maps[0]),
        (ours.feature_norm, theirs.maps[1]),
        (ours.projection, theirs.dense[0]),
        (ours.projection_norm, theirs.dense[2]),
    ]
    for own, other in pairs:
        other.load_state_dict(own.state_dict())
    theirs.output.bias = None if ours.entity_bias is None else nn.Parameter(ours.entity_bias.data)
    return theirs.eval()


def summed_loss(scores: Tensor, tail: Tensor) -> Tensor:
    """Return the sum of the rows' losses, as the fast forms of captum need it."""
    return row_losses(scores, tail).sum()


def run_clew(question: Question) -> Scores:
    """Find the top ten rows of each test; the scores are computed again, untimed."""
    case = question.case
    train, test = triples(case.rows, 1), triples(case.tests, 2)
    form = LossForm("binary_cross_entropy", SMOOTHING, one_query_a_row=False)
    kind = Directions(RELATIONS, inverse_relations=False)
    rows = TripleRows(
        form,
        training_rows(train, form, kind).to(CPU, torch.float32),
        own_rows(test, form, kind).to(CPU, torch.float32),
    )
    model = clew_network(bias=case.bias)
    options = KernelOptions(depth=DEPTHS[case.explained])
    plan = plan_tiles(
        model,
        num_tests=len(test),
        num_checkpoints=1,
        num_directions=1,
        num_parts=6,
        keep_features=True,
        budget_mib=BUDGET_MIB,
    )
    start = time.perf_counter()
    kernel = GraphModelCheckpoint(model, rows, options)
    explain_in_tiles(
        Summation([kernel], [1.0], cosine=False),
        tiles(train, np.arange(len(train)), plan.tile_triples),
        len(train),
        top_k=10,
        numbers_per_pair=0,
        cleanup=MemoryCleanup(enabled=False, interval_steps=1, device=CPU),
        progress=lambda done, total: None,
    )
    seconds = time.perf_counter() - start
    scores = kernel.products(np.arange(min(COMPARED, len(train))), norms=False).by_part.sum(0)
    return seconds, scores.numpy()


def run_captum(question: Question) -> Scores:
    """Score all rows with the fast form, or with its projection; its set-up counts too."""
    from captum.influence import TracInCPFast, TracInCPFastRandProj

    case = question.case
    train, test = triples(case.rows, 1), triples(case.tests, 2)
    model = copied(clew_network(bias=case.bias))
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "model.safetensors")
        state = model.state_dict()
        del state["output.weight"]  # the entity table
        save_file(state, path)

        def load(module: nn.Module, file: str) -> float:
            module.load_state_dict(load_file(file), strict=False)
            return 1.0

        form = TracInCPFast
        more: dict[str, object] = {}
        if case.opponent == PROJECTED:
            form, more = TracInCPFastRandProj, {"projection_dim": PROJECTED_NUMBERS}
        start = time.perf_counter()
        tracin = form(
            model,
            model.output,
            TensorDataset(*columns(train)),
            [path],
            checkpoints_load_func=load,
            loss_fn=summed_loss,
            batch_size=question.batch,
            **more,
        )
        scores = tracin.influence(columns(test), k=None)
        return time.perf_counter() - start, scores.detach().numpy()


def run_dattri(question: Question) -> Scores:
    """Score all rows with flattened gradients of each row, by vmap."""
    from dattri.algorithm.tracin import TracInAttributor
    from dattri.task import AttributionTask

    case = question.case
    model = copied(clew_network(bias=case.bias))

    def loss(parameters: Mapping[str, Tensor], data: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        head, relation, tail = (part.reshape(1) for part in data)
        return row_losses(torch.func.functional_call(model, parameters, (head, relation)), tail)[0]

    task = AttributionTask(loss_func=loss, model=model, checkpoints=model.state_dict())
    attributor = TracInAttributor(
        task=task, weight_list=torch.ones(1), normalized_grad=False, device="cpu"
    )
    attributor.projector_kwargs = None
    loaders = [
        DataLoader(TensorDataset(*columns(rows)), batch_size=size, shuffle=False)
        for rows, size in (
            (triples(case.rows, 1), question.batch),
            (triples(case.tests, 2), case.tests),
        )
    ]
    start = time.perf_counter()
    scores = attributor.attribute(*loaders)
    return time.perf_counter() - start, scores.numpy().T


def run_kronfluence(question: Question) -> Scores:
    """Score all rows with inner products of gradients, without factors."""
    from kronfluence.analyzer import Analyzer, prepare_model
    from kronfluence.arguments import FactorArguments
    from kronfluence.task import Task

    class Loss(Task):
        """The same loss for training rows and tests."""

        def compute_train_loss(
            self, batch: object, model: nn.Module, sample: bool = False
        ) -> Tensor:
            assert isinstance(batch, list)
            head, relation, tail = batch
            return summed_loss(model(head, relation), tail)

        def compute_measurement(self, batch: object, model: nn.Module) -> Tensor:
            return self.compute_train_loss(batch, model)

        def get_influence_tracked_modules(self) -> list[str]:
            return ["dense.0", "output"]

    case = question.case
    train, test = (
        TensorDataset(*columns(triples(count, seed)))
        for count, seed in ((case.rows, 1), (case.tests, 2))
    )
    model = prepare_model(copied(clew_network(bias=case.bias)), Loss())
    with tempfile.TemporaryDirectory() as folder:
        analyzer = Analyzer(
            "opponent", model, Loss(), cpu=True, disable_tqdm=True, output_dir=folder
        )
        start = time.perf_counter()
        analyzer.fit_all_factors("none", train, factor_args=FactorArguments(strategy="identity"))
        analyzer.compute_pairwise_scores(
            "scores",
            "none",
            test,
            train,
            per_device_query_batch_size=case.tests,
            per_device_train_batch_size=question.batch,
        )
        seconds = time.perf_counter() - start
        scores = analyzer.load_pairwise_scores("scores")["all_modules"]
    return seconds, scores.numpy()


RUNNERS: dict[str, Callable[[Question], Scores]] = {
    "Clew": run_clew,
    FAST: run_captum,
    PROJECTED: run_captum,
    DATTRI: run_dattri,
    KRONFLUENCE: run_kronfluence,
}


def work(program: str) -> None:
    """Answer each question with seconds and the first scores."""
    keep_allocator_pages()
    torch.set_num_threads(THREADS)
    warnings.simplefilter("ignore")  # captum warns that the projection keeps its vectors
    for asked in asked_for():
        seconds, scores = RUNNERS[program](Question.read(asked))
        report_child({"seconds": seconds, "scores": scores[:COMPARED, :COMPARED].tolist()})


@dataclass(frozen=True)
class Answer:
    """What a process answers."""

    seconds: float
    scores: list[list[float]]
    process_peak_gib: float


@dataclass
class Found:
    """What was measured of one case: seconds of each round, the opponent's by batch size."""

    case: Case
    ours: list[float]
    theirs: dict[int, list[float]]
    difference: float
    correlation: float

    def add(self, ours: Answer, theirs: Mapping[int, Answer]) -> None:
        """Add a round."""
        self.ours.append(ours.seconds)
        for size, answer in theirs.items():
            self.theirs[size].append(answer.seconds)

    def figures(self) -> dict[str, list[float]]:
        """Return seconds of both, and their ratio in each round."""
        if not self.ours:
            return {}
        best = self.theirs[self.batch]
        name = f"{self.case.opponent}, {self.case.explained}"
        ratios = [a / b for a, b in zip(best, self.ours, strict=True)]
        return {
            f"{name}, times Clew's seconds": ratios,
            f"{name}, s": best,
            f"{name}, Clew's s": self.ours,
        }

    @property
    def batch(self) -> int:
        """The fastest batch size of the first round."""
        return min(self.theirs, key=lambda size: self.theirs[size][0])

    def row(self) -> dict[str, object]:
        """Return the row of the table."""
        case, measured = self.case, bool(self.ours)
        return {
            "opponent": case.opponent,
            "explained": case.explained + ("" if case.bias else ", no bias"),
            "rows": case.rows,
            "tests": case.tests,
            "batch sizes": ", ".join(map(str, case.batches)),
            "fastest": self.batch if measured else None,
            "same method": case.exact,
            "largest difference": self.difference,
            "correlation": self.correlation,
            "rounds": len(self.ours),
            "its s": median(self.theirs[self.batch]) if measured else None,
            "Clew's s": median(self.ours) if measured else None,
            "times Clew's s": median(next(iter(self.figures().values()))) if measured else None,
        }


def ask(worker: Worker, case: Case, batch: int) -> Answer:
    """Let a process compute a case."""
    return Answer(**worker.ask(asdict(Question(case, batch))))


def compared(case: Case, workers: Mapping[str, Worker]) -> Found:
    """Compare the scores on few rows; this also does the imports and first calls.

    Raises:
        ValueError: The method is the same, but the scores are not.
    """
    few = replace(case, rows=min(case.rows, COMPARED), tests=min(case.tests, COMPARED))
    batch = min(case.batches[0], few.rows)
    ours, theirs = ask(workers["Clew"], few, batch), ask(workers[case.opponent], few, batch)
    own, other = np.array(ours.scores), np.array(theirs.scores)
    difference = float(np.abs(own - other).max() / np.abs(own).max())
    if case.exact and difference > TOLERANCE:
        raise ValueError(
            f"{case.opponent}, {case.explained}: scores differ from Clew's by {difference:.2g} of "
            f"the largest, at most {TOLERANCE} expected; the two do not compute the same"
        )
    correlation = float(np.corrcoef(own.ravel(), other.ravel())[0, 1])
    what = f"{case.opponent}, {case.explained}"
    print(f"{what}: differs by {difference:.2g}, correlation {correlation:.4f}", flush=True)
    return Found(case, [], {size: [] for size in case.batches}, difference, correlation)


def measure(deadline: float, cases: tuple[Case, ...]) -> list[Found]:
    """Compare scores, then measure in rounds until the time is over."""
    workers = {program: Worker(NAME, program) for program in RUNNERS}
    every = [compared(case, workers) for case in cases]
    longest: dict[Case, float] = {}
    for turn in range(ROUNDS):
        for found in every:
            case, start = found.case, time.monotonic()
            if start + longest.get(case, 0.0) > deadline:
                continue
            sizes = case.batches if turn == 0 else (found.batch,)
            asked = [("Clew", 0), *((case.opponent, size) for size in sizes)]
            answers = {
                size: ask(workers[program], case, size)
                for program, size in (asked if turn % 2 == 0 else asked[::-1])
            }
            found.add(answers.pop(0), answers)
            longest[case] = time.monotonic() - start
            print(f"round {turn + 1}: {case.opponent}", flush=True)
    for worker in workers.values():
        worker.close()
    return every


def main(minutes: float, share: float) -> None:
    """Measure until the time is over, and print and write the results."""
    cases = tuple(replace(case, rows=max(COMPARED, int(case.rows * share))) for case in CASES)
    every = measure(time.monotonic() + 60 * minutes, cases)
    rows = [found.row() for found in every]
    print_table(rows)
    figures = {name: values for found in every for name, values in found.figures().items()}
    results = {"threads": THREADS, "projected numbers": PROJECTED_NUMBERS, "cases": rows}
    packages = ["torch", "captum", "dattri", "kronfluence"]
    write_results(NAME, results, figures=figures, packages=packages)


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        work(sys.argv[2])
    else:
        given = [float(word) for word in sys.argv[1:]]
        main(*given, *(MINUTES, 1.0)[len(given) :])
