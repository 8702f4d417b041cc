"""The figures that the documents quote, and the result file of each; README has five.

A figure is quoted only if its file was written from a committed tree with the default sizes, and if
it has at least three rounds. Each figure names the files of code that it depends on. If one of them
has changed since by more than comments, docstrings and blank lines, the figure is marked as older.
"""

import ast
import hashlib
import io
import tokenize
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clew.runs.hardware import why_no_result_file

MIN_ROUNDS = 3
CODE = Path(__file__).resolve().parents[1] / "platform/clew"
Content = Mapping[str, Any]
"""The JSON content of a result file."""


@dataclass(frozen=True)
class Quote:
    """A figure of a result file, and README's words for it with `{}` in place of the value."""

    key: str
    words: str


@dataclass(frozen=True)
class Figure:
    """A row of the table of quoted figures."""

    what: str
    benchmark: str
    measured: tuple[Quote, ...]
    beside: tuple[Quote, ...] = ()
    code: tuple[str, ...] = ()
    """Files below platform/clew whose code decides the figure."""
    short: tuple[str, str, str] | None = None
    """README's words: what, the first measured value and the first one beside it."""


TRAINING = (
    "training/trainer.py",
    "training/optimizer.py",
    "link_prediction/task.py",
    "link_prediction/models/conve.py",
    "link_prediction/losses/fused_one_vs_all.py",
)
INFLUENCE = (
    "influence/summation.py",
    "influence/link_prediction/tracin.py",
    "influence/link_prediction/traced_run.py",
    "influence/link_prediction/rows.py",
)
TRACIN = "32,000 rows, 100 tests, 1 checkpoints, raw"
CAPTUM = "captum 0.9.0 TracInCPFast, last layer"
FIGURES = (
    Figure(
        "`make demo` once everything is installed: two runs, explanations, a check, promotion",
        "demo_time",
        (Quote("seconds", "{} s"),),
        code=(
            "workflows/demo.py",
            "workflows/train.py",
            "workflows/verify.py",
            "training/trainer.py",
        ),
    ),
    Figure(
        "ConvE training, FB15k-237's sizes, batch 512, float32",
        "training_speed",
        (Quote("trainer, float32, queries/s", "{} queries/s"),),
        (
            Quote("matrix products alone, float32, queries/s", "its matrix products alone: {}"),
            Quote("PyKEEN 1.11.1, float32, queries/s", "PyKEEN 1.11.1, batch 128: {}"),
        ),
        short=(
            "ConvE training, FB15k-237's sizes",
            "{} queries/s",
            "{} for its matrix products alone",
        ),
        code=TRAINING,
    ),
    Figure(
        "its memory above an interpreter with torch",
        "training_speed",
        (Quote("trainer, float32, GiB above torch", "{} GiB"),),
        (Quote("PyKEEN 1.11.1, float32, GiB above torch", "PyKEEN: {} GiB"),),
        code=TRAINING,
    ),
    Figure(
        "the loss over 1,000,000 entities, batch 1,024, forward and backward",
        "wide_graph",
        (
            Quote("loss, fused, seconds", "{} s"),
            Quote("loss, fused, extra_gib", "{} GiB extra"),
        ),
        (Quote("loss, bare products, seconds", "its three matrix products alone: {} s"),),
        short=("loss and gradients over 1,000,000 entities", "{} s", "{} s for its products alone"),
        code=(
            "link_prediction/losses/fused_one_vs_all.py",
            "link_prediction/losses/score_tiles.py",
        ),
    ),
    Figure(
        "filtered ranking of FB15k-237's test triples, both sides",
        "ranking_speed",
        (Quote("clew, queries/s", "{} queries/s"), Quote("clew, GiB", "{} GiB")),
        (Quote("PyKEEN 1.11.1, queries/s", "PyKEEN on 256 queries: {}"),),
        short=("filtered ranking of FB15k-237's test triples", "{} queries/s", "{} with PyKEEN"),
        code=(
            "link_prediction/ranking.py",
            "link_prediction/triples.py",
        ),
    ),
    Figure(
        "reading 10,000,000 triples of names",
        "load_triples",
        (
            Quote("clew, names.txt, seconds", "{} s"),
            Quote("clew, names.txt, extra_gib", "{} GiB beyond the arrays"),
        ),
        (
            Quote("clew, tenth.txt, seconds", "1,000,000 triples: {} s"),
            Quote("pandas, tenth.txt, seconds", "pandas {} s"),
            Quote("pykeen, tenth.txt, seconds", "PyKEEN {} s"),
        ),
        code=(
            "link_prediction/triple_files.py",
            "link_prediction/vocabulary.py",
        ),
    ),
    Figure(
        "TracIn with every parameter, 32,000 training rows x 100 test triples",
        "influence_speed",
        (Quote(f"{TRACIN}, seconds", "{} s"), Quote(f"{TRACIN}, GiB", "{} GiB above the model")),
        (
            Quote(
                "loop, times as long, 4 tests",
                "on 4 test triples a loop of backward passes takes {} times as long",
            ),
        ),
        code=INFLUENCE,
    ),
    Figure(
        "TracIn with the last layer alone, 8,192 training rows x 100 test triples",
        "influence_opponents",
        (Quote(f"{CAPTUM}, Clew's s", "{} s"),),
        (Quote(f"{CAPTUM}, s", "captum's fast form: {} s"),),
        short=(
            "TracIn with the last layer alone, 8,192 facts x 100 answers",
            "{} s",
            "{} s with captum's fast form",
        ),
        code=INFLUENCE,
    ),
    Figure(
        "corrupted triples found by self-influence (UMLS, one_vs_all, three seeds)",
        "influence_quality",
        (Quote("one_vs_all, AUC self-influence", "area under the curve {}"),),
        (Quote("one_vs_all, AUC last loss", "by their loss: {}"),),
        short=(
            "corrupted facts found on UMLS, 1-vs-all",
            "area under the curve {}",
            "{} by their loss, 0.5 by chance",
        ),
        code=(
            "influence/link_prediction/tracin.py",
            "influence/link_prediction/traced_run.py",
            "workflows/explaining/trace_source.py",
        ),
    ),
    Figure(
        "language model `nano` (10 million parameters), windows of 32,768 tokens, bfloat16",
        "language_training",
        (Quote("nano, windows of 32768, tokens/s", "{} tokens/s"),),
        (
            Quote("nano, windows of 512, tokens/s", "windows of 512: {}"),
            Quote("transformer, windows of 512, tokens/s", "transformer of that size: {}"),
            Quote("transformer, windows of 4096, tokens/s", "with windows of 4,096: {}"),
        ),
        code=(
            "language_modeling/model.py",
            "language_modeling/loss.py",
            "layers/eigenstate.py",
            "layers/scan.py",
        ),
    ),
    Figure(
        "serving over HTTP, batches of 64",
        "serving_speed",
        (Quote("HTTP, 64 a request, queries/s", "{} queries/s"),),
        (
            Quote("HTTP, 1 a request, queries/s", "one per request: {}"),
            Quote("predictor alone, 64, queries/s", "the predictor without a server: {}"),
        ),
        code=(
            "runs/served_model.py",
            "runs/request_door.py",
            "link_prediction/prediction.py",
        ),
    ),
)


def digest_of(source: str) -> str:
    """Return a digest of a file's code, without comments, docstrings and blank lines."""
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
            continue
        if isinstance(node.value.value, str) and node.end_lineno:
            lines[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)
    code = "\n".join(line.rstrip() for line in lines if line.strip())
    return hashlib.sha256(code.encode()).hexdigest()[:16]


def digests(benchmark: str) -> dict[str, str]:
    """Return the digests of the files that the figures of a benchmark depend on."""
    files = dict.fromkeys(
        f for figure in FIGURES if figure.benchmark == benchmark for f in figure.code
    )
    return {file: digest_of((CODE / file).read_text(encoding="utf-8")) for file in files}


def changed(figure: Figure, content: Content) -> list[str]:
    """Return the files that a figure depends on and that have changed since it was measured."""
    before, now = content.get("code", {}), digests(figure.benchmark)
    return [file for file in figure.code if before.get(file) != now[file]]


def gap(figure: Figure, content: Content | None) -> str | None:
    """Return why a figure cannot be quoted, or None if it can."""
    if content is None:
        return "no result file"
    if reason := why_no_result_file(content["commit"]):
        return reason
    if content["command"] != f"python -m experiments.benchmarks.{figure.benchmark}":
        return f"it is from {content['command']!r}; README quotes only runs with the default sizes"
    for quote in (*figure.measured, *figure.beside):
        found = content.get("figures", {}).get(quote.key)
        if found is None:
            return f"the file has no figure {quote.key!r}"
        if found["rounds"] < MIN_ROUNDS:
            return f"{quote.key!r} has {found['rounds']} rounds; at least {MIN_ROUNDS} are needed"
    return None
