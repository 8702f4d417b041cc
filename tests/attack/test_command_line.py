"""Whole commands with arbitrary options and values, in this process or by the real program."""

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from clew.__main__ import run
from clew.cli.options import Verb, dashed
from experiments.reference import verbs
from tests.attack.cases import attempt, fuzz, require_one_line
from tests.attack.damage import HOSTILE_TEXTS, scalars, texts
from tests.attack.material import Material
from tests.workflows.trained import ROOT, use_store

pytestmark = pytest.mark.slow

ENDLESS = {"demo", "ui", "tune", "compare", "validate-influence", "verify"}
"""Commands that run for minutes, or until they are stopped, if nothing is wrong."""
WRONG: tuple[tuple[str, ...], ...] = (
    ("train", "--config", "x" * 5_000),
    ("train", "--set", "model.embedding_dim=" + "9" * 4_000),
    ("train", "data.train=/dev/null"),
    ("train", "--resume", "../../x"),
    ("predict", "--model", "models:/x@y@z", "--head", "a", "--relation", "b"),
    ("predict", "--model", "/dev/null", "--top-k", "-1"),
    ("evaluate", "--model", "x" * 300),
    ("evaluate", "--model", "/proc/self"),
    ("tracin", "--model", "/nowhere", "--test", "," * 3_000),
    ("promote", "--run-id", "' OR 1=1 --"),
)
WRONG_IN_A_PROCESS: tuple[tuple[str, ...], ...] = (
    ("nonsense",),
    ("train", "--set", "data.train=\x1b[2J"),
    ("predict", "--model", "../../x", "--prompt", "\udcff\udcfe"),
    ("data", "--set", "data.train=/dev/full"),
)
"""Commands for which the terminal, the system's encoding or special files matter."""


@pytest.fixture(scope="module")
def in_use(material: Material, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        use_store(patch, f"sqlite:///{material.folder / 'mlflow.db'}")
        patch.chdir(tmp_path_factory.mktemp("here"))
        yield


def drawn_arguments(draw: DrawFn, material: Material, verb: Verb) -> list[str]:
    """Return a few options of a command, with hostile values or valid values of other options."""
    good = (
        material.graph_run,
        material.text_run,
        str(material.checkpoint),
        str(material.model("frames")),
        str(material.graph / "test.txt"),
        "models:/graph@champion",
        "virus",
        "location_of",
        "1",
    )
    value = st.one_of(st.sampled_from(good), texts, scalars.map(str))
    names = [option.name for option in verb.declared if not option.hidden]
    chosen = draw(st.lists(st.sampled_from(names), max_size=4)) if names else []
    arguments = [f"{dashed(name)}={draw(value)}" for name in chosen]
    if draw(st.integers(0, 3)) == 0:
        arguments.append(draw(texts))
    if verb.name in {"train", "pretokenize"}:  # these must never run to the end
        arguments += ["--config=no such file"] if verb.name == "train" else ["--dataset=/no/such"]
    return [argument.replace("\0", "") for argument in arguments]


def ends_well(arguments: list[str]) -> int:
    """Run a command, check its exit code and its one-line error, and return the exit code."""
    errors, printed = io.StringIO(), io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(printed):
        code = run(arguments)
    assert code in {0, 2, 3}, (code, arguments)
    said = [line for line in errors.getvalue().splitlines() if line.startswith("clew: error: ")]
    assert bool(code) == bool(said), (code, errors.getvalue()[:300])
    for line in said:
        require_one_line(line)
        assert line.isprintable()
    return code


def test_any_options(material: Material, in_use: None) -> None:
    known = {verb.name: verb for verb in verbs() if verb.name not in ENDLESS}

    def case(draw: DrawFn) -> None:
        verb = known[draw(st.sampled_from(sorted(map(str, known))))]
        arguments = drawn_arguments(draw, material, verb)
        attempt(lambda: ends_well([str(verb.name), *arguments]))
        left = [path for path in Path().rglob(".*.tmp")]
        assert not left, left

    fuzz(0.002, case)


def test_any_words(in_use: None) -> None:
    def case(draw: DrawFn) -> None:
        word = st.one_of(texts, st.sampled_from(["--set", "--help", "-h", "--"]))
        words = draw(st.lists(word, min_size=1))
        attempt(lambda: ends_well([word.replace("\0", "") for word in words]))

    fuzz(0.026, case)


@pytest.mark.parametrize("arguments", WRONG, ids=lambda words: words[0])
def test_wrong_arguments_are_one_line(arguments: tuple[str, ...], in_use: None) -> None:
    assert ends_well(list(arguments)) == 2
    assert not any(Path().rglob(".*.tmp"))


@pytest.mark.parametrize("arguments", WRONG_IN_A_PROCESS, ids=lambda words: words[0])
def test_the_real_program(arguments: tuple[str, ...], tmp_path: Path) -> None:
    environment = os.environ | {
        "PYTHONPATH": str(ROOT / "platform"),
        "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path / 'mlflow.db'}",
        "OMP_NUM_THREADS": "1",
    }
    words = [word.encode("utf-8", "surrogateescape") for word in arguments]
    done = subprocess.run(
        [sys.executable, "-m", "clew", *words],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        check=False,
    )
    errors = done.stderr.decode("utf-8", "replace")
    assert done.returncode == 2, errors
    *_, line = errors.splitlines()
    assert line.startswith("clew: error: "), errors
    require_one_line(line)
    assert line.isprintable()
    assert "Traceback" not in errors
    assert not any(tmp_path.rglob(".*.tmp"))


def test_no_hostile_text_is_a_model(in_use: None) -> None:
    for text in HOSTILE_TEXTS:
        words = ["predict", f"--model={text}".replace("\0", ""), "--head=a", "--relation=b"]
        attempt(lambda words=words: ends_well(words))  # type: ignore[misc]
