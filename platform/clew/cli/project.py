"""Commands for data and for the project as a whole: data, pretokenize, runs, sync, demo, ui."""

import os
import shlex
import socket
import sys
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from clew import names
from clew.cli.options import Configured, Option, Options, Printed, command, dashed
from clew.cli.output import in_json, tell
from clew.config.data import ImportSettings, PackSettings
from clew.errors import UsageError, counted, extra, printable, refusing

RunKind = Literal["train", "evaluate", "trace", "compare", "promote", "validate", "tune", "value"]


class DataOptions(Configured, ImportSettings):
    files: Annotated[tuple[Path, ...], Option(terminal_only=True, positional=True)] = ()
    """Files, folders or zip files in a published format."""
    config: Annotated[str, Option(first=True)] = ""
    """YAML file, or the name of a configuration that ships with Clew, whose data set to read; or
    the name of a data set, as with --name."""
    name: str = ""
    """Name of a data set, instead of --config: umls, or a folder under $CLEW_DATA."""
    train: str = ""
    """File of training triples, instead of --config or --name."""
    valid: str = ""
    """File of validation triples, with --train."""
    test: str = ""
    """File of test triples, with --train."""
    pack: Path | None = None
    """Pack the triples into this new file; with data.packed=FILE, training then reads them from the
    disk."""
    kgx: Path | None = None
    """Same as FILES: file or folder, of KGX or any other published format."""
    output_dir: Path | None = None
    """With FILES: new folder for the data set that is made of them."""

    def _check(self) -> None:
        if self.sources and (self.config or self.name or self.triples):
            raise ValueError("FILES or --kgx is given with --config, --name or --train; give one")
        if self.sources and self.pack is not None:
            raise ValueError(
                "--pack is given with FILES or --kgx; make the data set first, then pack its files "
                "with `clew data --train ... --pack FILE`"
            )
        only = sorted(self.model_fields_set & {"output_dir", *ImportSettings.model_fields})
        if not self.sources and only:
            raise ValueError(f"{dashed(only[0])} is given without FILES or --kgx; these need it")
        if self.triples and not self.train:
            raise ValueError("--valid or --test is given without --train; give --train too")

    @property
    def sources(self) -> list[Path]:
        """Files in a published format."""
        return [*self.files, *([self.kgx] if self.kgx else [])]

    @property
    def triples(self) -> dict[str, str]:
        """Files of triples by split."""
        files = {"train": self.train, "valid": self.valid, "test": self.test}
        return {split: file for split, file in files.items() if file}


@command(DataOptions, "clew data umls")
def data(options: DataOptions) -> None:
    """Check data and describe them. Or make a data set of FILES, or pack triples."""
    from clew.config.schema import FRAME_FILES
    from clew.workflows import data as workflow

    config, files, sources, said = options.config, options.triples, options.sources, ""
    if len(sources) == 1 and options.output_dir is None:
        only = str(sources[0])
        if sources[0].suffix in (".yaml", ".yml"):
            config, sources = only, []
        elif only.endswith(FRAME_FILES) or (sources[0] / "target.npy").is_file():
            files, sources = {"kind": "image_sequences", "path": only}, []
            said = f"\ntrain on it: clew train colab_optimized data.path={shlex.quote(only)}"
    if sources:
        tell(workflow.import_data(sources, options, options.output_dir))
        return

    settings = workflow.data_settings(config, options.name, files, options.overrides)
    pack = options.pack
    tell(workflow.pack_data(settings, pack) if pack else workflow.describe_data(settings) + said)


class PretokenizeOptions(Options, PackSettings):
    dataset: Annotated[str, Option(first=True)]
    """Text file, folder, JSON Lines or Parquet file, or the name of a text under $CLEW_DATA or on
    Hugging Face."""
    output: Path = Path("packed")
    """Folder for the packed tokens."""
    num_proc: int = Field(default=1, ge=1)
    """Number of processes that tokenize."""
    force: bool = False
    """Start again, and delete an existing pack in the folder."""


@command(PretokenizeOptions, "clew pretokenize corpus.txt output=packed")
def pretokenize(options: PretokenizeOptions) -> None:
    """Pack a text into tokens, once. A killed command continues where it stopped."""
    from clew.workflows.data import pretokenize_corpus

    output, num_proc = options.output, options.num_proc
    tell(pretokenize_corpus(options, output, num_proc=num_proc, force=options.force))


class RunsOptions(Printed):
    kind: RunKind | None = None
    """Kind of the runs (default: all)."""
    experiment: str = ""
    """Name of the experiment (default: all)."""
    limit: int = Field(default=20, ge=1, le=1000)
    """Number of runs to list at most."""


@dataclass(frozen=True)
class ListedRun:
    """One line of the list of runs."""

    run_id: str
    kind: str
    state: str
    data: str
    variant: str
    quality: str
    """Name of the task's main metric, and its value at the best checkpoint."""
    started: str
    """In UTC."""
    name: str


@dataclass(frozen=True)
class RunList:
    """Runs, the latest first; `more` is true if the store has more runs that match."""

    runs: tuple[ListedRun, ...]
    more: bool

    def table(self) -> str:
        """Return a header and one line per run."""
        if not self.runs:
            return "no such run"
        rows = [asdict(run) for run in self.runs]
        lines = [[key.replace("_", " ") for key in rows[0]]]
        lines += [list(map(printable, row.values())) for row in rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        shown = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
        note = ["there are more; --limit shows more of them"] if self.more else []
        return "\n".join([*shown, *note])


def list_runs(*, kind: str = "", experiment: str = "", limit: int = 20) -> RunList:
    """Return the latest runs."""
    from clew.runs.reading.metrics import headline_key, number_text, value_at_best
    from clew.runs.reading.runs import state_of
    from clew.runs.reading.search import RunQuery, experiment_id_of, search_runs

    ids = (experiment_id_of(experiment),) if experiment else ()
    page, listed = search_runs(RunQuery(ids, kind=kind), limit=limit), []
    for run in page.runs:
        key = headline_key(run)
        value = value_at_best(run, key) if key in run.metrics else None
        row = ListedRun(
            run.run_id,
            run.tags.get(names.TAG_KIND, ""),
            state_of(run),
            run.tags.get(names.TAG_DATASET, ""),
            run.tags.get(names.TAG_VARIANT, ""),
            "" if value is None else f"{key} {number_text(value)}",
            datetime.fromtimestamp(run.started_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M"),
            run.name,
        )
        listed.append(row)
    return RunList(tuple(listed), page.more)


@command(RunsOptions, "clew runs kind=train limit=5")
def runs(options: RunsOptions) -> None:
    """List the latest runs with their ids. Other commands take these, or `newest`."""
    found = list_runs(kind=options.kind or "", experiment=options.experiment, limit=options.limit)
    if options.as_json:
        for run in found.runs:
            tell(in_json(run))
    else:
        tell(found.table())


@command(Options)
def sync(options: Options) -> int:
    """Send the records that the tracking server missed. They were kept on this machine."""
    from clew.runs.delivery import sync_spool

    results = sync_spool()
    for result in results:
        left = f", the rest is still waiting: {result.problem}" if result.problem else ""
        tell(f"run {result.run_id}: {counted(result.num_sent, 'record')} sent{left}")
    if not results:
        tell("nothing is waiting")
    return 2 if any(result.problem and not result.is_alive for result in results) else 0


class DemoOptions(Options):
    beats: ClassVar[bool] = False
    quick: Annotated[bool, Option(terminal_only=True)] = False
    """Train for a few epochs only, for tests."""


@command(DemoOptions)
def demo(options: DemoOptions) -> None:
    """Train, compare, explain, promote on bundled data. The data is the graph UMLS."""
    from clew.workflows.demo import run_demo

    for line in run_demo(quick=options.quick):
        tell(line)


class UiOptions(Options):
    beats: ClassVar[bool] = False
    port: int = Field(default=8501, ge=1, le=65535)
    """Port to listen on."""
    address: str = "127.0.0.1"
    """Address to listen on."""
    host: str = Field(default="", pattern=r"^[\w.-]*$")
    """Host name that browsers use, if it is another one: `clew.example.org` behind a proxy."""
    base_path: str = Field(default="", pattern=r"^[\w.~/-]*$")
    """Path that the pages begin with, behind a proxy that serves other things too: `/clew`."""


@command(UiOptions, "clew ui --port 8080")
def ui(options: UiOptions) -> int:
    """Open the dashboard for the tracking store."""
    from clew.processes import PARENT_VARIABLE, run_child
    from clew.runs.store import tracking_uri

    with extra("ui"):
        if find_spec("streamlit") is None:
            raise ModuleNotFoundError(name="streamlit")
    port, address, base_path = str(options.port), options.address, options.base_path.strip("/")
    wrong = f"--port {port} at {address} cannot be used"
    advice = "; if a dashboard is already running there, open it, else give another --port"
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with refusing(wrong, OSError, UnicodeError, advice=advice, error=UsageError):
            probe.bind((address, options.port))
    command = [sys.executable, "-m", "clew.ui.serve"]
    command += ["--server.port", port, "--server.address", address]
    command += ["--server.baseUrlPath", base_path] if base_path else []
    for host in filter(None, ("127.0.0.1", "localhost", "::1", address, options.host)):
        command += ["--server.allowedHosts", host]
    environment = {"MLFLOW_TRACKING_URI": tracking_uri(), PARENT_VARIABLE: str(os.getpid())}
    try:
        return run_child(command, environment=environment)[0]
    except KeyboardInterrupt:
        return 130
