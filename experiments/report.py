"""Writes the figures of the result files into README.md, docs/measurements.md and LOG.md.

    python -m experiments.report

This replaces README's section between the marks with the ten figures, and `docs/measurements.md`
with all recorded results and the verdicts of the studies. It adds an entry to `experiments/LOG.md`
if the figures differ from those of the last entry. It prints the figures that still have to be
measured, and draws the pictures of measurements again.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from experiments import claims, quality_picture, trust_picture
from experiments.figures import FIGURES, MIN_ROUNDS, Content, Figure, Quote, gap

ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS = ROOT / "experiments/benchmarks/results"
STUDIES = ROOT / "experiments/studies/results"
README, LOG = ROOT / "README.md", ROOT / "experiments/LOG.md"
MEASUREMENTS = ROOT / "docs/measurements.md"
HEADER = "| what | measured | beside it | command, result file, commit |\n|---|---|---|---|"


def number(value: float) -> str:
    """Return a number as text with three digits, or without decimals from a hundred on."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def results(folder: Path) -> dict[str, Content]:
    """Return the content of each result file of a folder, by name."""
    files = sorted(folder.glob("*.json"))
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in files}


def figure_row(figure: Figure, content: Content | None) -> str:
    """Return a figure's row of README's table."""
    if content is None or gap(figure, content):
        command = f"`python -m experiments.benchmarks.{figure.benchmark}`"
        return f"| {figure.what} | to be measured | | {command} |"
    measured = ", ".join(_quoted(quote, content) for quote in figure.measured)
    beside = ", ".join(_quoted(quote, content) for quote in figure.beside)
    path = (BENCHMARKS / f"{figure.benchmark}.json").relative_to(ROOT)
    source = f"`{content['command']}`, [{path.name}]({path}), {content['commit'][:10]}"
    return f"| {figure.what} | {measured} | {beside} | {source} |"


def _quoted(quote: Quote, content: Content) -> str:
    found = content["figures"][quote.key]
    median, low, high = (number(found[key]) for key in ("median", "min", "max"))
    return quote.words.format(median if low == high else f"{median} ({low} to {high})")


def figure_rows(benchmarks: Mapping[str, Content]) -> list[str]:
    """Return all rows of README's table."""
    return [figure_row(figure, benchmarks.get(figure.benchmark)) for figure in FIGURES]


def figures_section(benchmarks: Mapping[str, Content]) -> str:
    """Return README's table and the line that names the machines."""
    quoted = [benchmarks[f.benchmark] for f in FIGURES if not gap(f, benchmarks.get(f.benchmark))]
    machines = sorted({machine(content) for content in quoted})
    where = f"Medians of at least {MIN_ROUNDS} rounds, smallest and largest in brackets"
    where += f"; measured on {' and on '.join(machines)}." if machines else "."
    return "\n".join([HEADER, *figure_rows(benchmarks), "", where])


def machine(content: Content) -> str:
    """Return a line that describes the machine of a benchmark."""
    found = content["machine"]
    gpus = "".join(f", {gpu['name']}" for gpu in found["gpus"]) or ", no GPU"
    size = f"{found['num_cores']} cores, {found['memory_gib']:.0f} GiB"
    return f"{found['cpu']}, {size}{gpus}, torch {found['torch']}"


def claim_row(found: claims.Verdict) -> str:
    """Return a row of the table of a study's claims."""
    estimate = found.estimate
    shown = "-" if estimate is None else number(estimate.value)
    if estimate is not None and estimate.rounds > 1:
        shown += f", {number(estimate.low)} to {number(estimate.high)}"
    source = found.claim.source.replace("|", "/")
    return f"| {found.claim.text} | {source} | {shown} | {found.verdict} |"


def measurements(benchmarks: Mapping[str, Content], studies: Mapping[str, Content]) -> str:
    """Return the page of all recorded results."""
    lines = ["# Measurements", "", "Written by `python -m experiments.report` from the files in"]
    lines += ["`experiments/benchmarks/results/` and `experiments/studies/results/`.", ""]
    for name, content in benchmarks.items():
        lines += [f"## {name}", "", f"`{content['command']}`, commit {content['commit']},"]
        lines += [f"{content['date'][:10]}; {machine(content)}.", ""]
        if figures := content.get("figures"):
            rows = [{"figure": key, **found} for key, found in figures.items()]
            lines += [*table(rows), ""]
        lines += [*rendered(content["results"]), ""]
    for name, content in studies.items():
        rounds = f"seeds {', '.join(map(str, content['seeds']))}"
        lines += [f"## Study: {name}", "", f"{content['study']}, commit {content['commit']},"]
        lines += [f"{content['date'][:10]}; {content['machine']}, torch {content['torch']};"]
        lines += [f"{rounds}. {content['method']} {claims.METHOD}", ""]
        lines += [*table(list(study_rows(content))), ""]
        lines += ["| claim | printed in | measured, 95 % interval | verdict |", "|---|---|---|---|"]
        judged = claims.judge(
            claims.load_claims(claims.STUDIES / "claims" / f"{name}.yaml"),
            claims.Results.model_validate(content),
        )
        lines += map(claim_row, judged)
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def study_rows(content: Content) -> Iterator[dict[str, object]]:
    """Yield a row for each variant: medians, with the ratio to the reference in brackets."""
    found: dict[str, dict[str, object]] = {}
    for result in content["results"]:
        row = found.setdefault(result["variant"], {"variant": result["variant"]})
        ratio = result["ratio"]
        is_reference = ratio is None or result["variant"] == content["reference"]
        text = "" if is_reference else f" ({number(ratio['value'])})"
        row[result["label"]] = number(result["median"]) + text
    yield from found.values()


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Return rows as a Markdown table with a column for every key of any row."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    lines = [f"| {' | '.join(keys)} |", "|---" * len(keys) + "|"]
    return lines + [f"| {' | '.join(_cell(row.get(key, '-')) for key in keys)} |" for row in rows]


def _cell(value: object) -> str:
    if isinstance(value, float):
        return number(value)
    if isinstance(value, list):
        return ", ".join(_cell(part) for part in value)
    if isinstance(value, dict):
        return ", ".join(f"{key} {_cell(part)}" for key, part in value.items())
    return "-" if value is None else str(value).replace("|", "/")


def rendered(value: Any) -> list[str]:
    """Return results as Markdown: one table per list of rows, and one for the other values."""
    if isinstance(value, list):
        return table(value)
    nested = {k: v for k, v in value.items() if v and isinstance(v, list) and _is_rows(v)}
    plain = {k: v for k, v in value.items() if k not in nested}
    lines = [*table([plain]), ""] if plain else []
    for key, rows in nested.items():
        lines += [f"{key}:", "", *table(rows), ""]
    return lines[:-1]


def _is_rows(values: Iterable[object]) -> bool:
    return all(isinstance(value, dict) for value in values)


def with_figures(text: str, section: str) -> str:
    """Return README with the section between the marks replaced."""
    pattern = re.compile(r"(<!-- figures: [^\n]* -->\n).*?(<!-- end of figures -->)", re.S)
    if not pattern.search(text):
        raise ValueError("README.md has no section between the marks of the figures")
    return pattern.sub(lambda found: f"{found[1]}{section}\n{found[2]}", text)


def last_log_rows(log: str) -> list[str]:
    """Return the rows of the last table of figures in the log."""
    found = log.rpartition(f"\n{HEADER}\n")
    return found[2].split("\n\n")[0].splitlines() if found[1] else []


def measured_rows(benchmarks: Mapping[str, Content]) -> list[str]:
    """Return the rows of README's table that have a figure."""
    pairs = zip(FIGURES, figure_rows(benchmarks), strict=True)
    return [row for figure, row in pairs if not gap(figure, benchmarks.get(figure.benchmark))]


def log_entry(benchmarks: Mapping[str, Content]) -> str:
    """Return an entry for the log with the figures that README quotes."""
    quoted = [benchmarks[f.benchmark] for f in FIGURES if not gap(f, benchmarks.get(f.benchmark))]
    date = max(content["date"] for content in quoted)[:10]
    rows = "\n".join([HEADER, *measured_rows(benchmarks)])
    where = " and on ".join(sorted({machine(content) for content in quoted}))
    return f"\n## {date} · The figures of README\n\nMeasured on {where}.\n\n{rows}\n"


def main() -> None:
    """Write all documents, and print which figures still have to be measured."""
    benchmarks, studies = results(BENCHMARKS), results(STUDIES)
    text = README.read_text(encoding="utf-8")
    README.write_text(with_figures(text, figures_section(benchmarks)), encoding="utf-8")
    MEASUREMENTS.parent.mkdir(exist_ok=True)
    MEASUREMENTS.write_text(measurements(benchmarks, studies), encoding="utf-8")
    log = LOG.read_text(encoding="utf-8")
    rows = measured_rows(benchmarks)
    if rows and rows != last_log_rows(log):
        LOG.write_text(log.rstrip("\n") + "\n" + log_entry(benchmarks), encoding="utf-8")
    trust_picture.main()
    quality_picture.main()
    for figure in FIGURES:
        if reason := gap(figure, benchmarks.get(figure.benchmark)):
            print(f"to be measured: {figure.benchmark}: {reason}")


if __name__ == "__main__":
    main()
