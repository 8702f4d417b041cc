"""Writes the figures of the result files into README.md and docs/measurements/.

    python -m experiments.report

This replaces README's section between the marks with five figures, and `docs/measurements/` with
all recorded results and the verdicts of the studies, a page for each question. It prints the
figures that still have to be measured, and draws the pictures of measurements again.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from experiments import claims, growth_picture, quality_picture, trust_picture
from experiments.figures import FIGURES, MIN_ROUNDS, Content, Figure, Quote, changed, gap

ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS = ROOT / "experiments/benchmarks/results"
STUDIES = ROOT / "experiments/studies/results"
README = ROOT / "README.md"
MEASUREMENTS = ROOT / "docs/measurements"
PAGES = {
    "training": (
        "How fast is training, and how much memory does it take?",
        ("training_speed", "training_opponents", "loss_speed", "wide_graph", "sampled_graph",
         "planner_accuracy"),
    ),
    "accuracy": ("How good do the models get?", ("accuracy",)),
    "time_to_quality": ("How soon are they good?", ("time_to_quality",)),
    "time_to_quality_codex": ("How soon, on CoDEx-S?", ("time_to_quality-codex-s",)),
    "explanations": (
        "How fast are explanations?",
        ("influence_speed", "influence_opponents", "influence_whole_graph", "influence_forms",
         "influence_unrolled", "window_influence"),
    ),
    "retraining": ("Which scores predict retraining?", ("influence_validation",)),
    "retraining_dense": ("Which do, on dense parts?", ("influence_validation-dense",)),
    "retraining_models": (
        "Which do, for three models?",
        ("influence_validation-models", "influence_validation-wordnet", "verify_recipe",
         "verify_alternatives", "tuned_recipe"),
    ),
    "wrong_facts": (
        "Do scores find wrong facts, and mechanisms?",
        ("influence_quality", "influence_mechanisms", "influence_neighbourhood",
         "influence_wrong_facts", "value_confirmed"),
    ),
    "kelpie": ("Do they find what Kelpie finds?", ("influence_kelpie",)),
    "data": (
        "How fast are triples read and packed on disk?",
        ("load_triples", "large_import", "packed_triples", "sharded_table", "shared_store"),
    ),
    "language": (
        "Language models: how good, how fast?",
        ("language_quality", "language_recall", "language_scan", "language_training"),
    ),
    "images": (
        "Image sequences: how good, in how much memory?",
        ("era5_temperature", "image_memory", "image_presets"),
    ),
    "growth": ("How does time grow with size?", ("growth",)),
    "answers": (
        "How fast are ranking, serving, the dashboard and the demo?",
        ("ranking_speed", "serving_speed", "serving_flood", "dashboard_speed", "dashboard_memory",
         "demo_time"),
    ),
}  # fmt: skip
"""The question of each page, and what the names of its results begin with; the longest counts."""
STUDY_PAGES = {
    f"claims_{name}": f"Which of the guides' claims about {about} hold?"
    for name, about in {
        "training": "training",
        "tracin": "TracIn",
        "loss": "the loss",
        "language_model": "language models",
        "image_sequences": "image sequences",
    }.items()
}
PICTURES = {"growth": "![Seconds against size, for each part and axis](../pictures/growth.png)"}
SEARCHED_LAST = "---\nsearch:\n  boost: 0.2\n---\n\n"
"""Front matter: people who search want an explanation before a table of numbers."""
HEADER = "| what | measured | beside it | command, result file, commit |\n|---|---|---|---|"


def number(value: float) -> str:
    """Return a number as text with three digits, or without decimals from a hundred on."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def results(folder: Path) -> dict[str, Content]:
    """Return the content of each result file of a folder, by name."""
    files = sorted(folder.glob("*.json"))
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in files}


def figure_row(figure: Figure, content: Content | None) -> str:
    """Return a figure's row: what, measured, beside it, source."""
    if content is None or gap(figure, content):
        command = f"`python -m experiments.benchmarks.{figure.benchmark}`"
        return f"| {figure.what} | to be measured | | {command} |"
    path = (BENCHMARKS / f"{figure.benchmark}.json").relative_to(ROOT)
    source = f"`{content['command']}`, `{path.name}`, {content['commit'][:10]}"
    if files := changed(figure, content):
        source += f", before changes of {', '.join(f'`{file}`' for file in files)}"
    return f"| {figure.what} | {' | '.join(_values(figure, content))} | {source} |"


def _values(figure: Figure, content: Content) -> list[str]:
    both = (figure.measured, figure.beside)
    return [", ".join(_quoted(quote, content) for quote in quotes) for quotes in both]


def _quoted(quote: Quote, content: Content) -> str:
    found = content["figures"][quote.key]
    median, low, high = (number(found[key]) for key in ("median", "min", "max"))
    return quote.words.format(median if low == high else f"{median} ({low} to {high})")


def figures_section(benchmarks: Mapping[str, Content]) -> str:
    """Return the table of all quoted figures and the line that names the machines."""
    quoted = [benchmarks[f.benchmark] for f in FIGURES if not gap(f, benchmarks.get(f.benchmark))]
    machines = sorted({machine(content) for content in quoted})
    where = f"Medians of at least {MIN_ROUNDS} rounds, smallest and largest in brackets"
    where += f"; measured on {' and on '.join(machines)}." if machines else "."
    rows = [figure_row(figure, benchmarks.get(figure.benchmark)) for figure in FIGURES]
    return "\n".join([HEADER, *rows, "", where])


def readme_section(benchmarks: Mapping[str, Content]) -> str:
    """Return README's table: the medians of five figures, each with one opponent."""
    rows = []
    for figure in FIGURES:
        content = benchmarks.get(figure.benchmark)
        if figure.short is not None and content is not None and not gap(figure, content):
            pairs = zip(figure.short[1:], (*figure.measured[:1], *figure.beside), strict=False)
            said = [
                words.format(number(content["figures"][quote.key]["median"]))
                for words, quote in pairs
            ]
            older = " (older)" if changed(figure, content) else ""
            rows.append(f"| {figure.short[0]}{older} | {' | '.join(said)} |")
    return "\n".join(["| | Clew | beside it |", "|---|---|---|", *rows])


def machine(content: Content) -> str:
    """Return a line that describes the machine of a benchmark."""
    found = content["machine"]
    gpus = "".join(f", {gpu['name']}" for gpu in found["gpus"]) or ", no GPU"
    size = f"{found['num_cores']} cores, {found['memory_gib']:.0f} GiB"
    cpu, more = found["cpu"], found.get("processor", {})  # older results have only the name
    if "model" in more:
        sets = ", ".join(more["instruction_sets"])
        cpu += f" (family {more['family']}, model {more['model']}, {sets})"
    return f"{cpu}, {size}{gpus}, torch {found['torch']}"


def claim_row(found: claims.Verdict) -> str:
    """Return a row of the table of a study's claims."""
    estimate = found.estimate
    shown = "-" if estimate is None else number(estimate.value)
    if estimate is not None and estimate.rounds > 1:
        shown += f", {number(estimate.low)} to {number(estimate.high)}"
    source = found.claim.source.replace("|", "/")
    return f"| {found.claim.text} | {source} | {shown} | {found.verdict} |"


def pages(benchmarks: Mapping[str, Content], studies: Mapping[str, Content]) -> dict[str, str]:
    """Return the text of each page of `docs/measurements/`, by file name.

    Raises:
        ValueError: A result belongs to no page.
    """
    found: dict[str, list[str]] = {name: [] for name in (*PAGES, *STUDY_PAGES)}
    for name, content in benchmarks.items():
        found[page_of(name)] += benchmark_section(name, content)
    for name, content in studies.items():
        found[f"claims_{name}"] += study_section(name, content)
    questions = {name: question for name, (question, _) in PAGES.items()} | STUDY_PAGES
    texts = {
        f"{name}.md": "\n".join(
            [
                f"# {questions[name]}",
                "",
                *([PICTURES[name], ""] if name in PICTURES else []),
                *lines,
            ]
        ).rstrip()
        + "\n"
        for name, lines in found.items()
        if lines
    }
    links = [f"| [{questions[name]}]({name}.md) |" for name, lines in found.items() if lines]
    index = [
        *("# Measurements", "", "Look up a question:", "", "| question |", "|---|", *links, ""),
        *("## The figures that are quoted", "", figures_section(benchmarks), ""),
        "Written by `python -m experiments.report`. [How we measure](../measuring.md).",
    ]
    texts = {"index.md": "\n".join(index) + "\n", **texts}
    return {name: SEARCHED_LAST + text for name, text in texts.items()}


def page_of(name: str) -> str:
    """Return the page of a result.

    Raises:
        ValueError: It belongs to none.
    """
    prefixes = {prefix: page for page, (_, given) in PAGES.items() for prefix in given}
    fitting = [prefix for prefix in prefixes if name.startswith(prefix)]
    if not fitting:
        raise ValueError(f"result {name} has no page of measurements; add it to PAGES")
    return prefixes[max(fitting, key=len)]


def benchmark_section(name: str, content: Content) -> list[str]:
    """Return the lines about a benchmark's results."""
    lines = [f"## {name}", "", f"`{content['command']}`, commit {content['commit']},"]
    lines += [f"{content['date'][:10]}; {machine(content)}.", ""]
    if figures := content.get("figures"):
        rows = [{"figure": key, **found} for key, found in figures.items()]
        lines += [*table(rows), ""]
    return [*lines, *rendered(content["results"]), ""]


def study_section(name: str, content: Content) -> list[str]:
    """Return the lines about a study's results and the claims that it judges."""
    rounds = f"seeds {', '.join(map(str, content['seeds']))}"
    lines = [f"## Study: {name}", "", f"{content['study']}, commit {content['commit']},"]
    lines += [f"{content['date'][:10]}; {content['machine']}, torch {content['torch']};"]
    lines += [f"{rounds}. {content['method']} {claims.METHOD}", ""]
    lines += [*table(list(study_rows(content))), ""]
    lines += ["| claim | printed in | measured, 95 % interval | verdict |", "|---|---|---|---|"]
    judged = claims.judge(
        claims.load_claims(claims.STUDIES / "claims" / f"{name}.yaml"),
        claims.Results.model_validate(content),
    )
    return [*lines, *map(claim_row, judged), ""]


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
    if isinstance(value, list) and value and _is_rows(value):
        return f"{len(value)}, in the file"
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


def main() -> None:
    """Write all documents, and print which figures still have to be measured."""
    benchmarks, studies = results(BENCHMARKS), results(STUDIES)
    text = README.read_text(encoding="utf-8")
    README.write_text(with_figures(text, readme_section(benchmarks)), encoding="utf-8")
    MEASUREMENTS.mkdir(exist_ok=True)
    for name, page in pages(benchmarks, studies).items():
        (MEASUREMENTS / name).write_text(page, encoding="utf-8")
    trust_picture.main()
    quality_picture.main()
    growth_picture.main()
    for figure in FIGURES:
        if reason := gap(figure, benchmarks.get(figure.benchmark)):
            print(f"to be measured: {figure.benchmark}: {reason}")


if __name__ == "__main__":
    main()
