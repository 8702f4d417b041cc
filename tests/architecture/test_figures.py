"""README and docs/measurements/ quote exactly the figures of the result files.

`python -m experiments.report` writes the documents.
"""

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clew.config.study import load_study
from experiments import report
from experiments.benchmarks import harness
from experiments.figures import CODE, FIGURES, Figure, Quote, changed, digest_of, digests, gap

BENCHMARKS = report.results(report.BENCHMARKS)
STUDIES = report.results(report.STUDIES)
FILES = {**BENCHMARKS, **{f"study {name}": content for name, content in STUDIES.items()}}


def git(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["git", "-C", str(report.ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_readme_is_the_reports() -> None:
    text = report.README.read_text(encoding="utf-8")
    section = report.readme_section(BENCHMARKS)
    assert text == report.with_figures(text, section), "run: python -m experiments.report"
    assert len(section.splitlines()) == 2 + 5


def test_the_pages_of_measurements_are_the_reports() -> None:
    texts = report.pages(BENCHMARKS, STUDIES)
    written = {
        path.name: path.read_text(encoding="utf-8") for path in report.MEASUREMENTS.iterdir()
    }
    assert written == texts, "run: python -m experiments.report"
    rows = [line for line in texts["index.md"].splitlines() if line.startswith("| ")]
    assert sum("experiments.benchmarks" in row for row in rows) == len(FIGURES) == 11


def test_a_result_without_a_page_is_refused() -> None:
    with pytest.raises(ValueError):
        report.page_of("something_new")


@pytest.mark.parametrize("name", FILES)
def test_a_result_is_from_a_commit_in_the_history(name: str) -> None:
    commit = FILES[name]["commit"]
    assert re.fullmatch(r"[0-9a-f]{40}", commit), "from a tree with uncommitted changes"
    if git("rev-parse", "--is-inside-work-tree").returncode:
        pytest.skip("this copy of the project is no git checkout, so it has no history")
    if git("rev-parse", "--is-shallow-repository").stdout.strip() == "true":
        pytest.skip("this clone is shallow, so most of its history is missing")
    assert git("merge-base", "--is-ancestor", commit, "HEAD").returncode == 0


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_is_as_it_was_when_it_was_run(name: str) -> None:
    content = STUDIES[name]
    size = re.fullmatch(r"\w+(?: \((\w+)\))?", content["study"])
    assert size
    study = load_study(name, size=size[1])
    assert (study.name, study.reference) == (content["study"], content["reference"])
    assert {found["variant"] for found in content["results"]} == set(study.variants)
    assert len(content["seeds"]) >= 3


FIGURE = Figure("a step", "speed", (Quote("seconds", "{} s"),), (Quote("other", "PyKEEN: {}"),))


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make benchmarks write to a temporary folder, as from a committed tree."""
    monkeypatch.setattr(harness, "ROOT", tmp_path)
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    monkeypatch.setattr(harness, "COMMIT", "a" * 40)
    monkeypatch.setattr("sys.argv", ["speed"])
    return tmp_path


def written(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "speed.json").read_text(encoding="utf-8")))


def test_a_figure_is_shown_with_its_rounds_file_and_commit(recorded: Path) -> None:
    figures = {"seconds": [2.0, 1.0, 4.0], "other": [1234.5] * 3}
    harness.write_results("speed", [], figures=figures)
    content = written(recorded)
    assert content["figures"]["seconds"] == {"median": 2.0, "min": 1.0, "max": 4.0, "rounds": 3}
    assert gap(FIGURE, content) is None
    row = report.figure_row(FIGURE, content)
    assert row.startswith("| a step | 2 (1 to 4) s | PyKEEN: 1,234 | `python -m experiments.")
    assert row.endswith("`speed.json`, aaaaaaaaaa |")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"commit": "a" * 40 + "-dirty"}, "uncommitted changes"),
        ({"commit": None}, "not a git checkout"),
        ({"figures": {}}, "no figure 'seconds'"),
        ({"command": "python -m experiments.benchmarks.speed 9"}, "with the default sizes"),
    ],
)
def test_what_cannot_be_trusted_is_not_quoted(
    recorded: Path, change: dict[str, Any], reason: str
) -> None:
    harness.write_results("speed", [], figures={"seconds": [2.0] * 3, "other": [1.0] * 3})
    content = written(recorded) | change
    assert reason in str(gap(FIGURE, content))
    assert "| to be measured |" in report.figure_row(FIGURE, content)


CODE_OF_A_STEP = '''"""What it does."""

RATE = 2  # a comment


def step(x: int) -> int:
    """Return it."""
    return x * RATE
'''


@pytest.mark.parametrize(
    ("old", "new", "is_same"),
    [
        ("a comment", "another one", True),
        ("Return it.", "Return it twice.\n\n    At most.\n    ", True),
        ("RATE = 2", "RATE = 3", False),
        ("return x * RATE", 'return "x" * RATE', False),
    ],
)
def test_a_digest_is_of_code_alone(old: str, new: str, is_same: bool) -> None:
    assert old in CODE_OF_A_STEP
    assert (digest_of(CODE_OF_A_STEP.replace(old, new)) == digest_of(CODE_OF_A_STEP)) is is_same


def test_a_figure_of_older_code_says_so(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("fast.py", "slow.py"):
        (recorded / name).write_text(CODE_OF_A_STEP)
    figure = replace(FIGURE, code=("fast.py", "slow.py"), short=("a step", "{} s", "{}"))
    monkeypatch.setattr("experiments.figures.CODE", recorded)
    monkeypatch.setattr("experiments.figures.FIGURES", (figure,))
    monkeypatch.setattr("experiments.report.FIGURES", (figure,))
    harness.write_results("speed", [], figures={"seconds": [2.0] * 3, "other": [1.0] * 3})
    content = written(recorded)
    assert changed(figure, content) == []
    assert "| a step | 2 s | 1 |" in report.readme_section({"speed": content})
    (recorded / "slow.py").write_text(CODE_OF_A_STEP.replace("RATE = 2", "RATE = 3"))
    assert changed(figure, content) == ["slow.py"]
    assert report.figure_row(figure, content).endswith(", before changes of `slow.py` |")
    assert "| a step (older) | 2 s | 1 |" in report.readme_section({"speed": content})


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.benchmark)
def test_each_figure_names_the_code_that_it_depends_on(figure: Figure) -> None:
    assert figure.code
    assert set(figure.code) <= set(digests(figure.benchmark))
    assert all((CODE / file).is_file() for file in figure.code)
    assert isinstance(BENCHMARKS[figure.benchmark]["code"], dict)


def test_two_rounds_are_too_few(recorded: Path) -> None:
    harness.write_results("speed", [], figures={"seconds": [2.0] * 3, "other": [1.0] * 2})
    assert gap(FIGURE, written(recorded)) == "'other' has 2 rounds; at least 3 are needed"


def test_a_result_tells_processors_of_one_name_apart(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(
        "processor\t: 0\ncpu family\t: 25\nmodel\t\t: 1\nmodel name\t: AMD EPYC\n"
        "stepping\t: 2\nflags\t\t: fpu avx2 avx512f amx_int8\n\nprocessor\t: 1\nmodel\t\t: 9\n"
    )
    for name, content in (("level", "3"), ("type", "Unified"), ("size", "32768K")):
        (tmp_path / "index3").mkdir(exist_ok=True)
        (tmp_path / "index3" / name).write_text(f"{content}\n")
    found = harness.processor(tmp_path / "cpuinfo", tmp_path)
    assert found == {
        "family": 25,
        "model": 1,
        "stepping": 2,
        "instruction_sets": ["avx2", "avx512f"],
        "L3 Unified": "32768K",
    }
    assert harness.processor(tmp_path / "none", tmp_path) == {}


def test_a_machine_is_shown_with_and_without_its_processor(recorded: Path) -> None:
    harness.write_results("speed", [], figures={"seconds": [2.0] * 3})
    content = written(recorded)
    machine = content["machine"]
    assert len(machine["load"]["before"]) == len(machine["load"]["after"]) == 3
    machine["processor"] = {"family": 25, "model": 1, "instruction_sets": ["avx2", "avx512f"]}
    assert "(family 25, model 1, avx2, avx512f)" in report.machine(content)
    del machine["processor"]
    assert report.machine(content).startswith(f"{machine['cpu']}, ")


@pytest.mark.parametrize("commit", ["a" * 40 + "-dirty", None])
def test_a_benchmark_records_nothing_from_a_tree_with_uncommitted_changes(
    recorded: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    commit: str | None,
) -> None:
    monkeypatch.setattr(harness, "COMMIT", commit)
    assert harness.write_results("speed", [], figures={"seconds": [1.0]}) is None
    assert list(recorded.iterdir()) == []
    assert capsys.readouterr().out.startswith("speed.json is not written: ")


def test_every_quoted_benchmark_is_measured_by_make_figures_or_make_opponents() -> None:
    makefile = (report.ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    quoted, opponents = (
        set(found[1].split())
        for name in ("QUOTED", "OPPONENTS")
        if (found := re.search(rf"^{name} := (.+)$", makefile, re.M))
    )
    every = {figure.benchmark for figure in FIGURES}
    assert quoted == every - opponents
