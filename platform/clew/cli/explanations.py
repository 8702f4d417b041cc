"""Commands that explain predictions, test explanations and write reports."""

import dataclasses
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from clew.cli.options import Configured, ModelReference, Option, Options, Printed, Spoken, command
from clew.cli.output import in_json, progress_bar, tell
from clew.config.base import COMMAS
from clew.config.services import ClusterRequest, ValidationRequest, ValueRequest
from clew.errors import ConfigError
from clew.names import KIND_TRACE, KIND_TRAIN

logger = logging.getLogger(__name__)
ModelToExplain = Annotated[str, Option(also=("model_path",), run_kind=KIND_TRAIN, first=True)]


class ExplainOptions(Configured, Spoken, Printed):
    model: ModelToExplain = ""
    """Run id, newest, models:/name@alias, or a folder of checkpoints; RUN1,RUN2 explains the mean
    over runs of one configuration with different seeds."""
    train: str = ""
    """File of training triples; checked against those that the model was trained on."""
    entity_to_id: str = ""
    """Dictionary of entities; checked against the model's own."""
    relation_to_id: str = ""
    """Dictionary of relations; checked against the model's own."""


class TracinOptions(ExplainOptions):
    test: Annotated[str, Option(also=("test_triples",))] = ""
    """File of triples, or head,relation,tail."""
    output: Path | None = None
    """Folder for three result files, or a single .json, .csv or .parquet file."""


@command(TracinOptions, "clew tracin newest test=virus,causes,pathologic_function")
def tracin(options: TracinOptions) -> None:
    """Find the training triples behind a prediction. They raised or lowered it."""
    from clew.workflows.explaining.trace_source import GivenFiles
    from clew.workflows.explaining.tracin import tracin as workflow

    asked = options.model, options.test, options.overrides
    given = GivenFiles(options.train, options.entity_to_id, options.relation_to_id)
    units = _unit(options, "triples"), "training runs"
    bars = [progress_bar(unit, as_json=options.as_json) for unit in units]
    result = workflow(*asked, files=given, output=options.output, progress=bars[0], trained=bars[1])
    if options.as_json:
        tell(in_json(result.as_dict()))
        return
    disputed: set[str] = set()

    def noted(line: str) -> str:
        disputed.add(line)
        return line

    for line in result.table(grey=noted).split("\n"):
        tell(line, grey=line in disputed)


class BatchTracinOptions(ExplainOptions, ClusterRequest):
    test_triples: Annotated[str, Option(also=("test",))] = ""
    """File of triples to explain."""
    output_dir: Annotated[Path | None, Option(also=("output",))] = None
    """Folder for results; if it holds part of the same request, the rest is added (default: one
    under runs/batch_tracin for each model, file of test triples, and settings)."""
    start_index: Annotated[int, Field(ge=0)] = 0
    """First line to explain; lines are counted from 0."""
    max_triples: Annotated[int | None, Field(ge=1)] = None
    """Number of lines to explain (default: all that follow)."""
    edge_map: str = ""
    """JSON file that maps each predicate to a readable label."""
    node_name_dict: str = ""
    """File of entity labels, id<TAB>name."""


@command(BatchTracinOptions, "clew batch-tracin newest test_triples=test.txt max_triples=10")
def batch_tracin(options: BatchTracinOptions) -> None:
    """Explain many predictions; resumable. Only training triples near each are scored."""
    from clew.workflows.explaining import batch_tracin as workflow
    from clew.workflows.explaining.batch_tracin import BatchRequest
    from clew.workflows.explaining.trace_source import GivenFiles

    own = options.model_dump(include={field.name for field in dataclasses.fields(BatchRequest)})
    files = GivenFiles(options.train, options.entity_to_id, options.relation_to_id)
    request = BatchRequest(**own, overrides=options.overrides, files=files)
    bars = [progress_bar(unit, as_json=options.as_json) for unit in ("tests", "training runs")]
    result = workflow.batch_tracin(request, cluster=options, progress=bars[0], trained=bars[1])
    tell(in_json(result.as_dict()) if options.as_json else result.table())


def _unit(options: Configured, facts: str) -> str:
    """Return what the progress bar counts."""
    return "steps" if options.overrides.get("influence.score") in {"unrolled", "tuned"} else facts


class TraceWindowsOptions(Configured, Spoken):
    num_last_layers: Annotated[int | None, Field(ge=1)] = None
    """Use only this many modules, counted from the end (default: all)."""
    output: Path | None = None
    """Also write the report to this JSON file; for several explanations, a folder with one file for
    each."""

    def explain(self, trace: Callable[..., Any], model: str, asked: Sequence[object]) -> None:
        """Call a workflow with these options, and print its results."""
        how = {"num_last_layers": self.num_last_layers, "output": self.output}
        progress = progress_bar(_unit(self, "windows"), as_json=False)
        results = trace(model, asked, self.overrides, progress=progress, **how)
        tell("\n\n".join(result.table() for result in results))


class TraceSequenceOptions(TraceWindowsOptions):
    model: ModelReference
    """Run id, newest, or a folder of checkpoints of image sequences."""
    frame: Annotated[tuple[int, ...], COMMAS] = ()
    """Last frame of the window to explain; several are separated by commas (default: the window
    with the largest error)."""


@command(TraceSequenceOptions, "clew trace-sequence newest frame=1200")
def trace_sequence(options: TraceSequenceOptions) -> None:
    """Find the training windows behind a frame prediction."""
    from clew.workflows.explaining.trace_windows import trace_sequences

    options.explain(trace_sequences, options.model, options.frame or [None])


class TraceTextOptions(TraceWindowsOptions):
    model: ModelReference
    """Run id, newest, or a folder of checkpoints of a language model."""
    prompt: str = ""
    """Text before the continuation."""
    continuation: str = ""
    """Text to explain (default: what the model writes)."""
    prompts: Path | None = None
    """File of prompts to explain in one pass over the training windows: on each line a JSON object
    with prompt and, optionally, continuation."""


@command(TraceTextOptions, "clew trace-text newest prompt='To be, or'")
def trace_text(options: TraceTextOptions) -> None:
    """Find the training windows behind a text. They made its continuation likely."""
    from clew.workflows.explaining.trace_windows import trace_texts
    from clew.workflows.predict_windows import Text, read_texts

    if options.prompts is not None and (options.prompt or options.continuation):
        beside = "--prompt" if options.prompt else "--continuation"
        raise ConfigError(f"--prompts and {beside} are both given; leave one of them out")
    given = Text(options.prompt, options.continuation)
    texts = [given] if options.prompts is None else read_texts(options.prompts)
    options.explain(trace_texts, options.model, texts)


class ValidateInfluenceOptions(Options, ValidationRequest):
    model: ModelReference
    """Run id, newest, models:/name@alias, or a folder of checkpoints of a graph model."""


@command(ValidateInfluenceOptions, "clew validate-influence newest subsets=10 seeds=1")
def validate_influence(options: ValidateInfluenceOptions) -> None:
    """Test a model's explanations. It trains again without facts and compares."""
    from clew.workflows.explaining.validate_influence import validate_influence as workflow

    progress = progress_bar("retrainings", as_json=False)
    tell(workflow(options, say=tell, progress=progress).table())


class VerifyOptions(Printed):
    explanation: Annotated[str, Option(run_kind=KIND_TRACE, first=True)] = ""
    """Run of kind trace, or newest (default: the newest, or a new one if --test is given)."""
    test: str = ""
    """File of triples, or head,relation,tail, to explain first."""
    model: Annotated[str, Option(run_kind=KIND_TRAIN)] = "newest"
    """Model that explains --test."""
    top_tests: Annotated[int | None, Field(ge=1)] = None
    """Number of explained triples to check, best rank first (default: 1, or all of --test)."""
    seeds: Annotated[int, Field(ge=1)] = 2
    """Number of seeds to train with."""
    whole: bool = False
    """Also train again from the start without the facts, as the reference."""
    at_once: Annotated[int, Field(ge=1)] = 5
    """Most explanations that share a fine-tuning, if their ends are apart; not with --whole."""
    epochs: Annotated[int | None, Field(ge=1)] = None
    """Epochs of the fine-tuning (default: a sixth of the model's)."""
    learning_rate: Annotated[float | None, Field(gt=0)] = None
    """Peak rate of the fine-tuning (default: the model's)."""


@command(VerifyOptions, "clew verify newest")
def verify(options: VerifyOptions) -> None:
    """Check an explanation. Its facts are taken away, and the model is trained on."""
    from clew.workflows import verify as workflow

    request = workflow.VerifyRequest(**options.model_dump(exclude={"as_json"}))
    say = logger.info if options.as_json else tell
    progress = progress_bar("training runs", as_json=options.as_json)
    found = workflow.verify(request, say=say, progress=progress)
    following = f"verify {found.run_id} --whole --seeds 3"
    if found.is_whole:
        following = f"report --explanation {found.run_id} --output why.html"
    said = f"run {found.run_id}\n\n{found}\nnext: clew {following}"
    tell(in_json(found) if options.as_json else said)


class ValueFactsOptions(Options, ValueRequest):
    model: ModelReference
    """Run id, newest, models:/name@alias, or a folder of checkpoints of a graph model."""


@command(ValueFactsOptions, "clew value-facts newest worst=20")
def value_facts(options: ValueFactsOptions) -> None:
    """Find the facts that help or harm many predictions.

    The sum of their losses is differentiated through the whole training run, in one pass.
    """
    from clew.workflows.explaining.value_facts import value_facts as workflow

    bars = [progress_bar(unit, as_json=False) for unit in ("steps", "retrainings")]
    tell(workflow(options, progress=bars[0], retrained=bars[1]).table())


class ReportOptions(Options):
    explanation: Annotated[str, Option(run_kind=KIND_TRACE, first=True)]
    """Run of kind trace, newest, a folder that `clew tracin --output` wrote, or its JSON file."""
    output: Path
    """File to write."""
    test: Annotated[int, Field(ge=0)] = 0
    """Which explained triple of the report to write, counted from 0."""
    format: Literal["html", "trapi"] = "html"
    """What to write: html, a page to mail; or trapi, a message of the Translator Reasoner API."""


@command(ReportOptions, "clew report newest output=report.html")
def report(options: ReportOptions) -> None:
    """Write an explanation to a file. It is an HTML page to mail, or a TRAPI message."""
    from clew.files import write_whole
    from clew.runs.reading.explanation import html_report, open_explanation, trapi_json
    from clew.runs.reading.facts import averaged, place_text
    from clew.workflows.outputs import check_file

    check_file("--output", options.output)
    found = open_explanation(options.explanation, options.test)
    over = averaged(found.head.settings, len(found.head.model.runs))
    rank = place_text(float(found.test["rank"]), over)
    shown = html_report if options.format == "html" else trapi_json
    write_whole(options.output, shown(found))
    tell(f"{options.output}: the training facts behind {found.title} ({rank})")
