"""Commands that train, plan and measure: train, plan, tune, evaluate, compare."""

import dataclasses
import json
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from clew.cli.options import (
    DEFAULT_CONFIG,
    HIDDEN,
    ConfigOptions,
    ModelReference,
    Option,
    Printed,
    Spoken,
    command,
)
from clew.cli.output import BEATING, in_json, is_main_process, tell
from clew.config.base import COMMAS
from clew.config.services import ClusterRequest, DataSizes, SearchBudget
from clew.errors import ConfigError, ProtectedStop, harmless
from clew.files import write_json
from clew.names import NEWEST

if TYPE_CHECKING:
    from clew.workflows.train import FindPoint


class TrainOptions(ConfigOptions, Spoken):
    resume: Annotated[str, Option(alone=NEWEST)] = ""
    """Id of the run to continue from its newest good checkpoint; without a value, or with
    `newest`: the newest unfinished run of this configuration, or the newest checkpoint in
    `--checkpoint-dir`."""
    checkpoint_dir: Path | None = None
    """Folder that also keeps the run's checkpoints while it trains, as the tracking store does."""
    output_dir: Path | None = None
    """Also keep configuration and all checkpoints in this folder: a new one (NAME-2 if NAME
    contains a finished run), or, with --resume, the run's own."""
    strict: bool = False
    """Refuse options that cannot pay on this machine, instead of switching them off and saying
    so."""
    all: Annotated[bool, Option(terminal_only=True)] = False
    """Print all metrics at the end, in groups."""
    result_file: Annotated[Path | None, HIDDEN] = None
    """Also write the result as JSON."""
    parent_run: Annotated[str, HIDDEN] = ""
    """Parent run of this one."""
    tags: Annotated[str, HIDDEN] = "{}"
    """More tags of the run, as JSON."""


@command(TrainOptions, "clew train umls epochs=20 batch_size=256")
def train(options: TrainOptions) -> int:
    """Train a model. CONFIG is a YAML file or the name of a preset."""
    from clew.runs.store import spool_root
    from clew.workflows.train import train as workflow

    result = workflow(
        _resumed(options) if options.resume else options.configuration(),
        output_dir=options.output_dir,
        checkpoint_dir=options.checkpoint_dir,
        parent_run_id=options.parent_run or None,
        tags=json.loads(options.tags),
        strict=options.strict,
    )
    if not is_main_process():
        return 0
    if options.result_file:
        write_json(options.result_file, dataclasses.asdict(result))
    tell(result.table(everything=options.all))
    is_unsent = result.run_id is not None and (spool_root() / result.run_id).exists()
    # A study that reads the file goes on with the result.
    return ProtectedStop.exit_code if is_unsent and not options.result_file else 0


class ImportOptions(ConfigOptions, Spoken):
    weights: Annotated[Path, Option(first=True)]
    """State dict of PyKEEN or LibKGE (.pt, .safetensors), or LibKGE's checkpoint or package."""
    config: str = DEFAULT_CONFIG
    """YAML file, or the name of a configuration that ships with Clew: data, loss and learning
    rate."""
    names: Path | None = None
    """Folder with the dictionaries of the model's entities and relations (default: WEIGHTS's)."""
    norm: float | None = None
    """Norm of the distances of TransE or RotatE, if the file does not say it; only 2 fits."""
    output_dir: Path | None = None
    """Also keep configuration and checkpoint in this new folder."""


@command(ImportOptions, "clew import weights.pt model.kind=complex data.path=my_graph")
def import_(options: ImportOptions) -> None:
    """Record a model of PyKEEN or LibKGE as a run. It can be asked, explained and promoted."""
    from clew.link_prediction.other_models import read_other_model
    from clew.workflows.train import train

    path, given = options.weights, options.overrides
    other = read_other_model(path, options.names or path.parent, given, options.norm)
    settings = other.settings | {"training.num_epochs": 1} | given
    config = options.model_copy(update={"overrides": settings}).configuration()
    tell(train(config, output_dir=options.output_dir, imported=other).table())


def _resumed(options: TrainOptions) -> "FindPoint":
    """Return what finds the given run, the newest unfinished run, or one in a folder."""
    from clew.workflows import resume
    from clew.workflows.outputs import check_new_folder

    overrides, folder = options.overrides, options.checkpoint_dir
    if options.resume != NEWEST:
        if options.config != DEFAULT_CONFIG:
            raise ConfigError(
                f"--resume {options.resume} repeats that run's own configuration, but --config "
                f"{options.config} is given too; leave --config out and override with --set"
            )
        check_new_folder("--checkpoint-dir", folder)
        return lambda downloads: resume.find_resume_point(options.resume, overrides, downloads)
    if folder is None:
        return lambda downloads: resume.find_newest(options.configuration(), overrides, downloads)
    config = options.configuration() if options.config != DEFAULT_CONFIG else None
    return lambda _: resume.find_in_folder(folder, config, overrides)


class PlanOptions(ConfigOptions, Printed, DataSizes):
    device: str = ""
    """Device to plan for: cpu, cuda, or a GPU by name, here or not, such as 'H100 80GB'."""
    memory_gib: Annotated[float | None, Field(gt=0)] = None
    """Memory to fit into (default: what the device has)."""
    num_processes: Annotated[int, Option(also=("devices",)), Field(ge=1)] = 1
    """Processes of a data-parallel run, each on its device."""


@command(PlanOptions, 'clew plan small_32k batch_size=2 device="H100 80GB"')
def plan(options: PlanOptions) -> None:
    """Predict the memory that training needs. Also shows what other settings would save."""
    from clew.workflows import plan as workflow

    result = workflow.plan(
        options.configuration(),
        device=options.device or None,
        memory_gib=options.memory_gib,
        world_size=options.num_processes,
        sizes=options,
    )
    tell(in_json(result.as_dict()) if options.as_json else result.table())


class TuneOptions(ConfigOptions, Spoken, ClusterRequest, SearchBudget):
    pass


@command(TuneOptions, "clew tune umls minutes=10 trials=5 epochs=20")
def tune(options: TuneOptions) -> None:
    """Search for the best configuration. The same command again continues the search."""
    from tqdm import tqdm
    from tqdm.contrib.logging import logging_redirect_tqdm

    from clew.workflows import tune as workflow

    if "CLEW_LOG_LEVEL" not in os.environ and not options.verbose:
        logging.getLogger("clew").setLevel(logging.WARNING)  # one line per trial is enough,
        if not options.quiet:  # unless one lasts long
            for name in ("clew.training.reports", "clew.cli.output"):
                logging.getLogger(name).setLevel(logging.INFO)
    own = options.model_dump(include=set(SearchBudget.model_fields))
    request = workflow.TuneRequest(config=options.configuration(), **own)
    layout = "search: {percentage:3.0f}% of {total:g} minutes |{bar}| {postfix}"
    with (
        logging_redirect_tqdm(),
        tqdm(total=options.minutes, bar_format=layout, disable=None, leave=False) as bar,
    ):

        def say(line: str) -> None:
            tqdm.write(harmless(line))
            BEATING[-1].heard()

        def show(seconds: float, found: str) -> None:
            bar.set_postfix_str(found, refresh=False)
            bar.update(min(seconds / 60, options.minutes) - bar.n)

        result = workflow.tune(request, cluster=options, say=say, progress=show)
    tell(result.table())


class EvaluateOptions(Spoken, Printed):
    model: ModelReference
    """Run id, newest, models:/name@alias, or a checkpoint folder."""
    split: Literal["valid", "test"] = "test"
    """Split to evaluate, valid or test."""
    negatives: Path | None = None
    """Also evaluate with given wrong triples: a folder with valid_negatives.txt and
    test_negatives.txt (triple classification, as for CoDEx), or an .npz file with OGB's arrays
    (ranking)."""
    all: Annotated[bool, Option(terminal_only=True)] = False
    """Print all metrics at the end, in groups."""


@command(EvaluateOptions, "clew evaluate newest split=valid")
def evaluate(options: EvaluateOptions) -> None:
    """Evaluate a trained model on a split of its own data."""
    from clew.workflows.evaluate import evaluate as run_evaluation

    result = run_evaluation(options.model, options.split, negatives=options.negatives)
    tell(in_json(result.metrics) if options.as_json else result.table(everything=options.all))


class CompareOptions(Spoken, ClusterRequest):
    beats: ClassVar[bool] = False
    study: Annotated[str, Option(first=True)]
    """YAML file, or the name of a study that ships with Clew."""
    seeds: Annotated[tuple[int, ...], COMMAS] = ()
    """Seeds to use instead of the study's, separated by commas."""
    size: str = ""
    """Size of the study: quick for two cores, full for a GPU (default: quick)."""
    output: Path | None = None
    """JSON file for the results; not written if the tree has uncommitted changes."""
    all: Annotated[bool, Option(terminal_only=True)] = False
    """Print the table of all values and ratios at the end."""


@command(CompareOptions, "clew compare training seeds=0,1")
def compare(options: CompareOptions) -> None:
    """Measure variants against a reference. Each variant of a study runs in a separate process."""
    from clew.config.study import load_study
    from clew.workflows.compare import compare as run_study

    study, typed = load_study(options.study, seeds=options.seeds, size=options.size), options.study
    for line in run_study(
        study, typed=typed, output=options.output, everything=options.all, cluster=options
    ):
        tell(line)
