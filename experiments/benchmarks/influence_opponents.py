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

kronfluence's `ekfac` is compared with Clew's `kronecker`, not divided by norms, on a ConvE of 64
numbers that was trained on UMLS, and its facts: factors and eigenvectors of layers of FB15k-237's
sizes would take many minutes. Both fit their factors to the same rows, with labels drawn from the
model. They do not compute the same, so only the correlation is shown: `ekfac` corrects eigenvalues,
damps each layer's eigenvalues by a tenth of their mean, and has a whole matrix for entities;
`kronecker` damps each factor, has 32 eigenvectors for features and a diagonal for entities. The
seconds for the factors, which serve any tests, are also shown apart.
"""

import functools
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
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from clew.config.graph_models import ConvEModel
from clew.influence.link_prediction.moments import MomentSettings, kronecker
from clew.influence.link_prediction.rows import Directions, LossForm, own_rows, training_rows
from clew.influence.link_prediction.traced_run import (
    GraphModelCheckpoint,
    KernelOptions,
    TripleRows,
    build_trunk,
)
from clew.influence.link_prediction.tracin import plan_tiles, tiles
from clew.influence.link_prediction.trunk import Scorer
from clew.influence.summation import Summation, explain_in_tiles
from clew.layers.products import MatrixProduct
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
from experiments.benchmarks.training_opponents import UMLS

NAME = "influence_opponents"
ROUNDS, MINUTES, THREADS = 5, 9.0, 2
COMPARED = 32
"""Number of rows and of tests whose scores are compared."""
TOLERANCE = 1e-3
PROJECTED_NUMBERS = 1024
UMLS_DIM, UMLS_EPOCHS = 64, 10
FAST, PROJECTED = "captum 0.9.0 TracInCPFast", "captum 0.9.0 TracInCPFastRandProj"
DATTRI, KRONFLUENCE = "dattri 0.3.0 TracInAttributor", "kronfluence 1.0.1, identity"
EKFAC = "kronfluence 1.0.1, ekfac"
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
    umls: bool = False
    """A model trained on UMLS and its facts, instead of FB15k-237's sizes and random numbers."""


CASES = (
    Case(FAST, "last layer", 8192, 100, (512, 2048), bias=False),
    Case(PROJECTED, "last layer", 2048, 100, (2048,), bias=False, exact=False),
    Case(KRONFLUENCE, "last two layers", 512, 32, (32, 128)),
    Case(EKFAC, "last two layers", 1024, 100, (128, 512), exact=False, umls=True),
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


@dataclass(frozen=True)
class Scores:
    """Seconds for all rows, and scores `(test, row)` of at least the first COMPARED."""

    seconds: float
    scores: np.ndarray
    factor_seconds: float = 0.0
    """Of `seconds`, for what depends on training rows alone and serves any tests."""


def clew_network(case: Case) -> ConvE:
    """Return Clew's ConvE of a case."""
    if case.umls:
        return umls_network()
    torch.manual_seed(0)
    model = ConvE(ENTITIES, RELATIONS, ConvEModel(entity_bias=case.bias)).train()
    rows = torch.from_numpy(triples(2048, 7).astype(np.int64))
    with torch.no_grad():
        for _ in range(20):  # running statistics
            model.queries(rows[:, 0], rows[:, 1])
        if case.bias:
            assert model.entity_bias is not None
            model.entity_bias.normal_(std=0.1)
    return model.eval()


@functools.cache
def umls_network() -> ConvE:
    """Return a small ConvE that is trained on UMLS, the same in every process."""
    torch.manual_seed(0)
    graph = opponent_loop.Graph(UMLS)
    rows = torch.tensor(graph.triples["train"])
    config = ConvEModel(embedding_dim=UMLS_DIM)
    model = ConvE(graph.entities, graph.relations // 2, config).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    for _ in range(UMLS_EPOCHS):
        for head, relation, tail in (part.T for part in rows[torch.randperm(len(rows))].split(128)):
            loss = row_losses(model.scores(model.queries(head, relation)), tail).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model.eval()


def facts(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Return the training rows and the tests of a case."""
    if not case.umls:
        return triples(case.rows, 1), triples(case.tests, 2)
    graph = opponent_loop.Graph(UMLS)
    train, test = (np.array(graph.triples[split], np.int32) for split in ("train", "test"))
    return train[: case.rows], test[: case.tests]


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
    bias = None if ours.entity_bias is None else nn.Parameter(ours.entity_bias.data)
    theirs.output.register_parameter("bias", bias)
    return theirs.eval()


def summed_loss(scores: Tensor, tail: Tensor) -> Tensor:
    """Return the sum of the rows' losses, as the fast forms of captum need it."""
    return row_losses(scores, tail).sum()


def run_clew(question: Question) -> Scores:
    """Find the top ten rows of each test; the scores are computed again, untimed."""
    case = question.case
    train, test = facts(case)
    model = clew_network(case)
    form = LossForm("binary_cross_entropy", SMOOTHING, one_query_a_row=False)
    kind = Directions(model.relation.num_embeddings, inverse_relations=False)
    rows = TripleRows(
        form,
        training_rows(train, form, kind).to(CPU, torch.float32),
        own_rows(test, form, kind).to(CPU, torch.float32),
    )
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
    start, geometry = time.perf_counter(), None
    if case.opponent == EKFAC:
        with torch.no_grad():
            scorer, settings = Scorer(model, MatrixProduct()), MomentSettings(rows=len(train))
            geometry = kronecker(build_trunk(model), scorer, rows.train, form.function, settings)
    factors = time.perf_counter()
    kernel = GraphModelCheckpoint(model, rows, options, geometry)
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
    return Scores(seconds, scores.numpy(), factors - start)


def run_captum(question: Question) -> Scores:
    """Score all rows with the fast form, or with its projection; its set-up counts too."""
    from captum.influence import TracInCPFast, TracInCPFastRandProj

    case = question.case
    train, test = facts(case)
    model = copied(clew_network(case))
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
        return Scores(time.perf_counter() - start, scores.detach().numpy())


def run_dattri(question: Question) -> Scores:
    """Score all rows with flattened gradients of each row, by vmap."""
    from dattri.algorithm.tracin import TracInAttributor
    from dattri.task import AttributionTask

    case = question.case
    train, test = facts(case)
    model = copied(clew_network(case))

    def loss(parameters: dict[str, Tensor], data: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        head, relation, tail = (part.reshape(1) for part in data)
        return row_losses(torch.func.functional_call(model, parameters, (head, relation)), tail)[0]

    task = AttributionTask(loss_func=loss, model=model, checkpoints=model.state_dict())
    attributor = TracInAttributor(
        task=task, weight_list=torch.ones(1), normalized_grad=False, device="cpu"
    )
    attributor.projector_kwargs = None
    loaders = [
        DataLoader(TensorDataset(*columns(rows)), batch_size=size, shuffle=False)
        for rows, size in ((train, question.batch), (test, case.tests))
    ]
    start = time.perf_counter()
    scores = attributor.attribute(*loaders)
    return Scores(time.perf_counter() - start, scores.numpy().T)


def run_kronfluence(question: Question) -> Scores:
    """Score all rows with inner products of gradients, without factors or with those of EK-FAC."""
    from kronfluence.analyzer import Analyzer, prepare_model
    from kronfluence.arguments import FactorArguments, ScoreArguments
    from kronfluence.task import Task

    class Loss(Task):  # type: ignore[misc,unused-ignore]
        """The same loss for training rows and tests."""

        def compute_train_loss(
            self, batch: object, model: nn.Module, sample: bool = False
        ) -> Tensor:
            assert isinstance(batch, list)
            head, relation, tail = batch
            scores = model(head, relation)
            if sample:
                labels = torch.bernoulli(scores.detach().sigmoid())
                return F.binary_cross_entropy_with_logits(scores, labels, reduction="sum")
            return summed_loss(scores, tail)

        def compute_measurement(self, batch: object, model: nn.Module) -> Tensor:
            return self.compute_train_loss(batch, model)

        def get_influence_tracked_modules(self) -> list[str]:
            return ["dense.0", "output"]

    case = question.case
    train, test = (TensorDataset(*columns(rows)) for rows in facts(case))
    model = prepare_model(copied(clew_network(case)), Loss())
    strategy = "ekfac" if case.opponent == EKFAC else "identity"
    with tempfile.TemporaryDirectory() as folder:
        analyzer = Analyzer(
            "opponent", model, Loss(), cpu=True, disable_tqdm=True, output_dir=folder
        )
        start = time.perf_counter()
        analyzer.fit_all_factors(
            strategy, train, question.batch, factor_args=FactorArguments(strategy=strategy)
        )
        factors = time.perf_counter()
        analyzer.compute_pairwise_scores(
            "scores",
            strategy,
            test,
            train,
            score_args=ScoreArguments(damping_factor=None),
            per_device_query_batch_size=case.tests,
            per_device_train_batch_size=question.batch,
        )
        seconds = time.perf_counter() - start
        scores = analyzer.load_pairwise_scores("scores")["all_modules"]
    return Scores(seconds, scores.numpy(), factors - start)


RUNNERS: dict[str, Callable[[Question], Scores]] = {
    "Clew": run_clew,
    FAST: run_captum,
    PROJECTED: run_captum,
    DATTRI: run_dattri,
    KRONFLUENCE: run_kronfluence,
    EKFAC: run_kronfluence,
}


def work(program: str) -> None:
    """Answer each question with seconds and the first scores."""
    keep_allocator_pages()
    torch.set_num_threads(THREADS)
    warnings.simplefilter("ignore")  # captum warns that the projection keeps its vectors
    for asked in asked_for():
        found = RUNNERS[program](Question.read(asked))
        report_child(vars(found) | {"scores": found.scores[:COMPARED, :COMPARED].tolist()})


@dataclass(frozen=True)
class Answer:
    """What a process answers."""

    seconds: float
    scores: list[list[float]]
    process_peak_gib: float
    factor_seconds: float = 0.0


@dataclass
class Found:
    """What was measured of one case: answers of each round, the opponent's by batch size."""

    case: Case
    ours: list[Answer]
    theirs: dict[int, list[Answer]]
    difference: float
    correlation: float

    def add(self, ours: Answer, theirs: Mapping[int, Answer]) -> None:
        """Add a round."""
        self.ours.append(ours)
        for size, answer in theirs.items():
            self.theirs[size].append(answer)

    def figures(self) -> dict[str, list[float]]:
        """Return seconds of both, and their ratio in each round."""
        if not self.ours:
            return {}
        best, ours = ([a.seconds for a in found] for found in (self.theirs[self.batch], self.ours))
        name = f"{self.case.opponent}, {self.case.explained}"
        found = {
            f"{name}, times Clew's seconds": [a / b for a, b in zip(best, ours, strict=True)],
            f"{name}, s": best,
            f"{name}, Clew's s": ours,
        }
        if self.case.opponent == EKFAC:
            found[f"{name}, s of factors"] = [a.factor_seconds for a in self.theirs[self.batch]]
            found[f"{name}, Clew's s of factors"] = [a.factor_seconds for a in self.ours]
        return found

    @property
    def batch(self) -> int:
        """The fastest batch size of the first round."""
        return min(self.theirs, key=lambda size: self.theirs[size][0].seconds)

    def row(self) -> dict[str, object]:
        """Return the row of the table."""
        case, measured, figures = self.case, bool(self.ours), list(self.figures().values())
        return {
            "opponent": case.opponent,
            "explained": case.explained + ("" if case.bias else ", no bias"),
            "model": "trained on UMLS" if case.umls else "random, FB15k-237's sizes",
            "rows": case.rows,
            "tests": case.tests,
            "batch sizes": ", ".join(map(str, case.batches)),
            "fastest": self.batch if measured else None,
            "same method": case.exact,
            "largest difference": self.difference,
            "correlation": self.correlation,
            "rounds": len(self.ours),
            "its s": median(figures[1]) if measured else None,
            "Clew's s": median(figures[2]) if measured else None,
            "times Clew's s": median(figures[0]) if measured else None,
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
    if case.umls:
        few = case  # factors of few rows would be others
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
