"""Commands that use trained models: predict, promote, export."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from clew.cli.options import ModelReference, Option, Options, Printed, Spoken, command, dashed
from clew.cli.output import in_json, progress_bar, tell

if TYPE_CHECKING:
    from clew.link_prediction.candidates import Limits

GRAPH = (
    *("head", "relation", "tail", "input", "triples", "top_k", "filter_known", "conformal"),
    *("head_kind", "tail_kind", "heads", "tails", "seen"),
)
TEXT = ("prompt", "prompt_file", "max_tokens", "temperature", "top_p", "seed", "state")
FRAMES = ("frames", "confidence")


class PredictOptions(Printed):
    model: ModelReference
    """Run id, newest, models:/name@alias, or a checkpoint folder."""
    head: str = ""
    """Name or label of the head, to predict tails; with --tail too, the whole triple is ranked."""
    relation: str = ""
    """Name or label of the relation; without --head and --tail, its best pairs are listed."""
    tail: str = ""
    """Name or label of the tail, to predict heads."""
    top_k: Annotated[int, Field(ge=1)] = 10
    """Number of answers per query, or of pairs in a list."""
    filter_known: bool = False
    """Leave out answers that are known from training (a list of pairs does, unless false)."""
    conformal: Annotated[float | None, Field(gt=0, lt=1), Option(alone="0.9")] = None
    """Mark the answers in a set that contains a new answer with this probability (alone: 0.9)."""
    input: Path | None = None
    """File of queries: JSON Lines, or head<TAB>relation<TAB>tail with ? for an unknown end."""
    triples: Path | None = None
    """File of whole triples to score, in the form of --input."""
    head_kind: str = ""
    """Kind of the entities that can be heads, such as Drug."""
    tail_kind: str = ""
    """Kind of the entities that can be tails."""
    heads: Path | None = None
    """File with the names of the entities that can be heads, one per line."""
    tails: Path | None = None
    """File with the names of the entities that can be tails, one per line."""
    seen: bool = False
    """Only entities that training has at this end of the relation."""
    prompt: str = ""
    """Text that a language model continues."""
    prompt_file: str = ""
    """File with the prompt, in UTF-8, instead of --prompt; - is standard input."""
    max_tokens: Annotated[int, Field(ge=0)] = 200
    """Number of tokens to write."""
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    """Divisor of the logits before a token is drawn; 0 takes the likeliest token."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Draw only among the likeliest tokens that together have this probability."""
    seed: Annotated[int | None, Field(ge=0, lt=2**63)] = None
    """Seed of the random draws (default: 0; with --state, the draws continue)."""
    state: Path | None = None
    """File that keeps the state after the text; if it exists, the text continues from there."""
    frames: Path | None = None
    """Image sequences to predict, as for training: HDF5, a Zarr store or a folder of arrays."""
    output: Path | None = None
    """File for answers, a list or triples (.parquet, .tsv, .csv, .json), or frames (.parquet)."""
    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.9
    """Share of targets that the intervals of frames should contain."""

    def _check(self) -> None:
        if self.input and (self.head or self.relation or self.tail):
            raise ValueError("--input and a query are both given; give one of them")
        if self.triples and (self.input or self.head or self.relation or self.tail):
            raise ValueError("--triples and a query are both given; give one of them")
        if self.prompt and self.prompt_file:
            raise ValueError("--prompt and --prompt-file are both given; give one of them")
        first = [given[0] for options in (GRAPH, TEXT, FRAMES) if (given := self.given(options))]
        if self.frames and "conformal" in self.model_fields_set:
            raise ValueError(
                "--conformal is given with --frames; the option for the intervals of frames is "
                "--confidence"
            )
        if len(first) > 1:
            raise ValueError(
                f"{dashed(first[0])} and {dashed(first[1])} are for models of different tasks; "
                "leave one of them out"
            )
        if self.output and self.given(TEXT):
            raise ValueError("--output is given for a text; it is printed: write > FILE instead")
        if self.frames and not self.output:
            raise ValueError("--frames is given without --output; name a file for the predictions")
        for name in ("input", "triples", "heads", "tails", "prompt_file", "frames"):
            given = getattr(self, name)
            if given and self.output and os.path.realpath(given) == os.path.realpath(self.output):
                raise ValueError(f"{dashed(name)} and --output are the same file; name another one")
        if self.conformal and (self.triples or self.lists):
            raise ValueError("--conformal is given with a list; it is for questions for one end")

    @property
    def lists(self) -> bool:
        """Whether the best pairs of a relation are requested."""
        return bool(self.relation and not (self.head or self.tail))

    def given(self, options: tuple[str, ...]) -> list[str]:
        """Return which of some options are given."""
        return [name for name in options if name in self.model_fields_set]

    def limits(self) -> "Limits":
        """Return which heads and tails are candidates; reads the files of names."""
        from clew.input_files import read_lines
        from clew.link_prediction.candidates import Limits

        heads, tails = (
            [line.strip() for line in read_lines(path) if line.strip()] if path else None
            for path in (self.heads, self.tails)
        )
        return Limits(self.head_kind, self.tail_kind, heads, tails, seen=self.seen)


@command(PredictOptions, "clew predict newest head=virus relation=causes")
def predict(options: PredictOptions) -> None:
    """Ask a trained model. It answers with heads, tails, a triple's rank, text or values."""
    if options.given(TEXT):
        _continue(options)
    elif options.frames:
        _predict_frames(options)
    elif options.triples or options.lists:
        _list(options)
    else:
        _answer(options)


def _answer(options: PredictOptions) -> None:
    from clew.workflows import predict as workflow
    from clew.workflows.outputs import check_table, write_table

    check_table("--output", options.output)
    one = workflow.asked(options.head, options.relation, options.tail)
    result = workflow.predict(
        options.model,
        workflow.read_queries(options.input) if options.input else [one],
        top_k=options.top_k,
        filter_known=options.filter_known,
        level=options.conformal,
        limits=options.limits(),
    )
    if options.output:
        rows, file = result.rows(), str(options.output)
        write_table(options.output, rows)
        lines = [*(f"note: {note}" for note in result.notes), f"{file}: {rows.num_rows:,} rows"]
        said = {"model": result.model, "notes": result.notes, "output": file}
        said["num_rows"] = rows.num_rows
        tell(in_json(said) if options.as_json else "\n".join(lines))
        return
    tell(in_json(result.as_dict()) if options.as_json else result.table())


def _list(options: PredictOptions) -> None:
    from clew.workflows.predict import predict_list, read_queries

    result = predict_list(
        options.model,
        read_queries(options.triples) if options.triples else options.relation,
        top_k=options.top_k,
        filter_known=options.filter_known or "filter_known" not in options.model_fields_set,
        limits=options.limits(),
        output=options.output,
    )
    tell(in_json(result.as_dict()) if options.as_json else result.table())


def _continue(options: PredictOptions) -> None:
    from clew.language_modeling.model import Sampling
    from clew.workflows.predict_windows import TextRequest, predict_text, read_prompt

    file = options.prompt_file
    prompt = read_prompt(file, sys.stdin.buffer) if file else options.prompt
    sampling = Sampling(options.temperature, top_p=options.top_p)
    request = TextRequest(prompt, options.max_tokens, sampling, options.seed, options.state)
    pieces = predict_text(options.model, request, progress_bar("tokens", as_json=False))
    if options.as_json:
        tell(in_json({"model": options.model, "prompt": prompt, "text": "".join(pieces)}))
        return
    for piece in pieces:
        tell(piece, nl=False)
    tell()


def _predict_frames(options: PredictOptions) -> None:
    from clew.workflows.predict_windows import predict_frames

    frames, output, share = options.frames, options.output, options.confidence
    assert frames is not None
    assert output is not None
    bar = progress_bar("windows", as_json=False)
    result = predict_frames(options.model, frames, output, confidence=share, progress=bar)
    tell(in_json(result.as_dict()) if options.as_json else result.table())


class PromoteOptions(Spoken, Printed):
    run_id: ModelReference = ""
    """Run whose best checkpoint to promote; newest for the training run that finished last."""
    experiment: str = ""
    """Experiment whose best run to promote, instead of a run id."""
    metric: str = ""
    """Validation metric that chooses and decides (default: that of the task, such as valid/mrr)."""
    name: str = ""
    """Name of the registered model (default: clew-<data set>)."""
    alias: str = ""
    """Alias to compete for (default: champion)."""
    dry_run: bool = False
    """Run the checks, but write nothing."""
    force: str = ""
    """Reason to overrule the checks that can be overruled; the reason is recorded."""
    rollback: bool = False
    """Give the alias back to the version that had it before."""

    def _check(self) -> None:
        for name in ("run_id", "experiment", "metric", "force") if self.rollback else ():
            if getattr(self, name):
                raise ValueError(
                    f"--rollback and {dashed(name)} are both given; a rollback restores the "
                    "version that had the alias before and checks nothing; leave one of them out"
                )


@command(PromoteOptions, "clew promote newest --dry-run")
def promote(options: PromoteOptions) -> None:
    """Check a run's best checkpoint and make it champion."""
    from clew.workflows import promote as workflow

    def show(check: Any) -> None:
        tell(in_json(check) if options.as_json else check.line())

    if options.rollback:
        result = workflow.rollback(options.name, options.alias, dry_run=options.dry_run)
    else:
        chosen = options.model_dump(exclude={"rollback", "as_json", "quiet", "verbose"})
        result = workflow.promote(workflow.PromotionRequest(**chosen), show)
    tell(in_json({"result": result.as_dict()}) if options.as_json else result.table())


class ExportOptions(Options):
    model: ModelReference
    """Run id, newest, models:/name@alias, or a checkpoint folder."""
    output_dir: Path
    """New folder for the files."""
    embeddings: Literal["", "parquet", "numpy", "word2vec", "projector"] = ""
    """Write only the embeddings, with names and kinds, in this format."""
    onnx: bool = False
    """Write the program for ONNX Runtime too."""

    def _check(self) -> None:
        if self.onnx and self.embeddings:
            raise ValueError(
                "--onnx is given with --embeddings, which writes no program; leave one of them out"
            )


@command(ExportOptions, "clew export newest output_dir=exported")
def export(options: ExportOptions) -> None:
    """Export a graph model as a torch.export program, with its named embeddings."""
    from clew.workflows.export import export as run_export

    embeddings = options.embeddings or None
    tell(run_export(options.model, options.output_dir, embeddings, onnx=options.onnx).table())
