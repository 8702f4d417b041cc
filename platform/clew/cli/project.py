"""Verbs about data and the project as a whole: data, pretokenize, sync, demo, ui."""

from pathlib import Path

import click

from clew.cli.options import flag, number_or_none, truth, whole_number


@click.command()
@flag("config", help="YAML file whose data section is read.")
@flag("name", help="A named data set instead: umls, or a folder under $CLEW_DATA.")
def data(config: str, name: str) -> int:
    """Read a data set, check it and say what is in it."""
    from clew.workflows.describe_data import describe_data

    click.echo(describe_data(config or None, name or None))
    return 0


@click.command()
@flag("dataset", required=True, help="Text file, folder, JSON Lines or Parquet file, or a name.")
@flag("output", required=True, help="Folder for the packed tokens.")
@flag("chunk_size", help="Tokens in a window; 32768 unless given.")
@flag("tokenizer", help="bytes, bpe, or a tokenizers JSON file; bytes unless given.")
@flag("vocabulary_size", help="Entries of a locally trained BPE vocabulary; 32768 unless given.")
@flag("text_column", help="Key or column that holds the text; text unless given.")
@flag("num_proc", help="Processes that tokenize; 1 unless given.")
@flag("max_chunks", help="Stop after so many windows.")
@flag("force", is_flag=False, flag_value="true", help="Begin anew, whatever the folder holds.")
def pretokenize(
    *,
    dataset: str,
    output: str,
    chunk_size: str,
    tokenizer: str,
    vocabulary_size: str,
    text_column: str,
    num_proc: str,
    max_chunks: str,
    force: str,
) -> int:
    """Pack a corpus into one memory map of tokens; a killed run goes on where it was."""
    from clew.language_modeling.pretokenize import PackSettings
    from clew.workflows.pretokenize import pretokenize_corpus

    settings = PackSettings(
        dataset=dataset,
        chunk_size=whole_number("chunk-size", chunk_size, 32768),
        tokenizer=tokenizer or "bytes",
        vocabulary_size=whole_number("vocabulary-size", vocabulary_size, 32768),
        text_column=text_column or "text",
        max_chunks=number_or_none("max-chunks", max_chunks),
    )
    result = pretokenize_corpus(
        settings,
        Path(output),
        num_proc=whole_number("num-proc", num_proc, 1),
        force=truth("force", force),
    )
    click.echo(result.table())
    return 0


@click.command()
def sync() -> int:
    """Send what could not be sent while the tracking server was away."""
    from clew.runs.forwarder import sync_spool

    results = sync_spool()
    for result in results:
        left = f", the rest waits: {result.problem}" if result.problem else ""
        click.echo(f"run {result.run_id}: {result.num_sent} records sent{left}")
    if not results:
        click.echo("nothing is waiting")
    return 2 if any(result.problem for result in results) else 0


@click.command()
@click.option("--quick", is_flag=True, help="A few epochs only, for tests.")
def demo(quick: bool) -> int:
    """Train on the bundled UMLS graph in two precisions and compare the runs."""
    from clew.workflows.demo import run_demo

    for line in run_demo(quick=quick):
        click.echo(line)
    return 0


@click.command()
@click.option("--port", default=8501, show_default=True, help="Port to listen on.")
@click.option("--address", default="127.0.0.1", show_default=True, help="Address to listen on.")
def ui(port: int, address: str) -> int:
    """Open the dashboard over the tracking store."""
    from clew.workflows.dashboard import serve_dashboard

    return serve_dashboard(port=port, address=address)
