"""Verbs about data and the project as a whole: data, pretokenize, sync, demo, ui."""

from pathlib import Path
from typing import Annotated

import click
from pydantic import Field

from clew.cli.options import Option, Options, command


class DataOptions(Options):
    """What `clew data` takes."""

    config: str = ""
    """YAML file, or the name of a configuration that ships with Clew, whose data are meant."""
    name: str = ""
    """A named data set instead: umls, or a folder under $CLEW_DATA."""


@command(DataOptions)
def data(options: DataOptions) -> int:
    """Read a data set, check it and say what is in it."""
    from clew.workflows.describe_data import describe_data

    click.echo(describe_data(options.config or None, options.name or None))
    return 0


class PretokenizeOptions(Options):
    """What `clew pretokenize` takes."""

    dataset: str
    """Text file, folder, JSON Lines or Parquet file, or a name."""
    output: Path = Path("packed")
    """Folder for the packed tokens."""
    chunk_size: int = 32768
    """Tokens in a window."""
    tokenizer: str = "bytes"
    """The word bytes or bpe, or a tokenizers JSON file."""
    vocabulary_size: int = 32768
    """Entries of a locally trained BPE vocabulary."""
    text_column: str = "text"
    """Key or column that holds the text."""
    num_proc: int = 1
    """Processes that tokenize."""
    max_chunks: int | None = None
    """Stop after so many windows."""
    held_out_fraction: float = Field(default=0.1, ge=0, lt=1)
    """Share at the end of the text that a BPE vocabulary is not trained on."""
    force: bool = False
    """Begin again, whatever the folder holds."""


@command(PretokenizeOptions)
def pretokenize(options: PretokenizeOptions) -> int:
    """Pack a corpus into one memory map of tokens; a killed run goes on where it was."""
    from clew.language_modeling.pack_settings import PackSettings
    from clew.workflows.pretokenize import pretokenize_corpus

    settings = PackSettings(**options.model_dump(exclude={"output", "num_proc", "force"}))
    result = pretokenize_corpus(
        settings, options.output, num_proc=options.num_proc, force=options.force
    )
    click.echo(result.table())
    return 0


class NoOptions(Options):
    """For a command that takes none."""


@command(NoOptions)
def sync(options: NoOptions) -> int:
    """Send what could not be sent while the tracking server was away."""
    from clew.runs.forwarder import sync_spool

    results = sync_spool()
    for result in results:
        left = f", the rest waits: {result.problem}" if result.problem else ""
        click.echo(f"run {result.run_id}: {result.num_sent} records sent{left}")
    if not results:
        click.echo("nothing is waiting")
    return 2 if any(result.problem for result in results) else 0


class DemoOptions(Options):
    """What `clew demo` takes."""

    quick: Annotated[bool, Option(terminal_only=True)] = False
    """A few epochs only, for tests."""


@command(DemoOptions)
def demo(options: DemoOptions) -> int:
    """Train on the bundled UMLS graph in two precisions and compare the runs."""
    from clew.workflows.demo import run_demo

    for line in run_demo(quick=options.quick):
        click.echo(line)
    return 0


class UiOptions(Options):
    """What `clew ui` takes."""

    port: int = 8501
    """Port to listen on."""
    address: str = "127.0.0.1"
    """Address to listen on."""


@command(UiOptions)
def ui(options: UiOptions) -> int:
    """Open the dashboard over the tracking store."""
    from clew.workflows.dashboard import serve_dashboard

    return serve_dashboard(port=options.port, address=options.address)
