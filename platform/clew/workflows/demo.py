"""Runs the demo: trains on one graph in two precisions, compares, explains and promotes."""

from collections.abc import Generator, Iterable, Iterator, Sequence

from clew import names
from clew.config.data import TripleData
from clew.config.load import flatten, load
from clew.config.schema import RunConfig
from clew.errors import PromotionRefused
from clew.link_prediction.sources import load_graph
from clew.runs.base import Tracker
from clew.runs.influence_forms import form_of
from clew.runs.mlflow_store import open_tracker
from clew.runs.reading.metrics import value_at_best
from clew.runs.reading.runs import find_run
from clew.runs.store import PROJECT_FILE, in_use, project_root
from clew.runs.verification import names_of
from clew.training.hardware import Hardware, fit_to_hardware
from clew.training.precision import resolve_device
from clew.workflows.child import train_in_child
from clew.workflows.explaining.tracin import SHOWN_PROPONENTS, in_words, tracin
from clew.workflows.promote import PromotionRequest, promote
from clew.workflows.train import TrainResult
from clew.workflows.verify import VerifyRequest, verify

NUM_EXPLAINED = 10
CHECKED_EPOCHS = 3
DASHBOARD = "http://127.0.0.1:8501"
EXAMPLE = ("acquired_abnormality", "location_of")
CONFIG = "umls"
VALIDATION = "valid/mrr"
SEED_DIFFERENCE = 0.007
"""Difference in validation MRR between the seeds 0 and 1 of this model, float32."""
VARIANTS: tuple[dict[str, bool], ...] = ({}, {"optimizations.use_mixed_precision": True})

COLUMNS = (
    ("test MRR", "test/mrr", "{:.4f}"),
    ("Hits@1", "test/hits_at_1", "{:.4f}"),
    ("Hits@10", "test/hits_at_10", "{:.4f}"),
    ("s/epoch", names.TIME_EPOCH_SECONDS, "{:.2f}"),
    ("examples/s", names.EXAMPLES_PER_SECOND, "{:,.0f}"),
    ("peak GiB", names.PROCESS_PEAK_GIB, "{:.2f}"),
    ("total s", names.TIME_TOTAL_SECONDS, "{:.1f}"),
)


def run_demo(*, quick: bool = False) -> Iterator[str]:
    """Train both variants, each in its own process, and yield the lines to print."""
    short = {"training.num_epochs": 2} if quick else {}
    configs = [load(CONFIG, variant | short) for variant in VARIANTS]
    with open_tracker(configs[0].tracking, kind=names.KIND_COMPARE, run_name="demo") as tracker:
        results = []
        for config in configs:
            precision = "mixed precision" if config.optimizations.use_mixed_precision else "float32"
            yield f"training ConvE on {config.data.name} in {precision} ..."
            results.append(train_in_child(config, parent_run_id=tracker.run_id))
        record(tracker, configs, results)
        yield ""
        yield from comparison(results)
        yield ""
        checked = yield from explanation(configs[0], results)
        yield ""
        yield from promotion(results)
        yield ""
        hardware = Hardware.of(resolve_device(configs[-1].training.device))
        yield from fit_to_hardware(configs[-1], hardware)[1]
        yield f"runs are in {in_use()}"
        command = "make ui" if (project_root() / PROJECT_FILE).is_file() else "clew ui"
        yield f"look at them with: {command}   ({DASHBOARD})"
        yield from checked


def record(tracker: Tracker, configs: Sequence[RunConfig], results: Sequence[TrainResult]) -> None:
    """Record the settings that the runs share, and their metrics and ratios."""
    first, *others = (flatten(config) for config in configs)
    tracker.params({k: v for k, v in first.items() if all(other[k] == v for other in others)})
    keys = [key for _, key, _ in COLUMNS if all(key in result.metrics for result in results)]
    values = {f"{r.variant}/{key}": r.metrics[key] for r in results for key in keys}
    reference = results[0].metrics
    ratios = {
        f"ratio/{result.variant}/{key}": result.metrics[key] / reference[key]
        for result in results[1:]
        for key in keys
        if reference[key]
    }
    tracker.metrics(values | ratios, step=0)


def explanation(
    config: RunConfig, results: Sequence[TrainResult]
) -> Generator[str, None, Iterable[str]]:
    """Explain ten test triples with the first model; show and check the best-ranked one.

    Returns the last words: what the check says, and its page.
    """
    model = results[0]
    if model.run_id is None or not isinstance(config.data, TripleData):
        return ()
    graph = load_graph(config.data)
    entity, relation = graph.entities.name, graph.relations.name
    first = graph.test[:NUM_EXPLAINED].tolist()
    tests = [(entity(h), relation(r), entity(t)) for h, r, t in first]
    result = tracin(model.run_id, tests, {})
    shown_test = min(result.report.tests, key=lambda test: test.rank)
    yield f"explained {len(result.report.tests)} test triples in {result.report.seconds:.1f} s"
    fact = in_words(shown_test.test)
    yield f"{model.variant} puts this at rank {shown_test.rank:g}: {fact}"
    yield "the training facts behind it, by an estimate:"
    for entry in shown_test.proponents[:SHOWN_PROPONENTS]:
        yield f"  {in_words(entry.train)}   ({entry.influence:+.3g})"
    yield f"in brackets: {form_of(result.report.settings).sentence}"
    yield result.report.label.sentence
    yield "checked, by training on without them for a short while:"
    triple = names_of(shown_test.test)
    found = verify(VerifyRequest(result.run_id or "", triple=triple, epochs=CHECKED_EPOCHS))
    verdict, *details = found.lines(found.tests[0])
    yield from (f"  {line}" for line in details)
    page = f"influence?run={found.run_id}&test={result.report.tests.index(shown_test)}"
    return f"the check of {fact}: {DASHBOARD}/{page}&view=Check%20it", f"  {verdict}"


def promotion(results: Sequence[TrainResult]) -> Iterator[str]:
    """Promote the float32 run; then the mixed-precision run may try to take its place."""
    runs = [find_run(result.run_id) for result in results if result.run_id is not None]
    for result, run in zip(results, runs, strict=True):
        try:
            said = promote(PromotionRequest(run.run_id)).outcome
        except PromotionRefused as refusal:
            said = str(refusal)
        yield f"{result.variant}: {said}"
    first, second = (value_at_best(run, VALIDATION) for run in runs)
    change = second - first
    within = "within" if abs(change) <= SEED_DIFFERENCE else "more than"
    yield (
        f"{VALIDATION} {change:+.4f} from {results[0].variant} to {results[1].variant}, one seed "
        f"each, is {within} what seeds differ by (seeds 0 and 1 in float32: {SEED_DIFFERENCE})"
    )
    yield "validation decides, the test split chooses nothing"
    uri = f"models:/{names.default_model_name(runs[0].tags[names.TAG_DATASET])}@champion"
    yield f"ask {uri} with"
    yield f"  clew predict --model {uri} --head {EXAMPLE[0]} --relation {EXAMPLE[1]}"


def comparison(results: Sequence[TrainResult]) -> Iterator[str]:
    """Yield a table with one run per line, and compare the later runs with the first."""
    yield f"{'':12}" + "".join(f"{title:>12}" for title, _, _ in COLUMNS) + "  run"
    for result in results:
        metrics = result.metrics
        texts = (form.format(metrics[k]) if k in metrics else "-" for _, k, form in COLUMNS)
        cells = "".join(f"{text:>12}" for text in texts)
        yield f"{result.variant:12}{cells}  {result.run_id}"
    for result in results[1:]:
        first, key = results[0], names.EXAMPLES_PER_SECOND
        speed = result.metrics[key] / first.metrics[key]
        yield (
            f"{result.variant} against {first.variant} on this machine: {speed:.2f} times the "
            "examples/s"
        )
