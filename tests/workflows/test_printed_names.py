"""Names in data, in a store or in a text that a model writes cannot control the terminal."""

import io
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from mlflow import MlflowClient

from clew import names
from clew.__main__ import run as run_command
from clew.cli.output import tell
from clew.workflows.train import train
from tests.workflows.trained import small_config

HARMFUL = {
    "title": "\x1b]0;owned\x07harmful",
    "clear": "\x1b[2Jclear",
    "red": "\x1b[31mred",
    "one": "\x9b31mone",
    "turned": "\u202eturned",
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


Show = Callable[[Callable[[], object]], str]


@pytest.fixture(params=[Terminal, io.StringIO])
def show(request: pytest.FixtureRequest) -> Show:
    """Return what a command prints, on a terminal or into a pipe."""

    def shown(act: Callable[[], object]) -> str:
        with redirect_stdout(request.param()) as output:
            assert act() in (0, None)
        return str(output.getvalue())

    return shown


def assert_harmless(text: str, *shown: str) -> None:
    assert not any(c in text for c in "\x1b\x07\x9b\u202e\r")
    for name in shown:
        assert repr(HARMFUL[name])[1:-1] in text


@pytest.fixture(scope="module")
def harmful_graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("harmful")
    title, clear, red, one, turned = HARMFUL.values()
    facts = [(title, red, clear), (clear, red, one), (one, red, title), (turned, red, title)]
    splits = {"train": facts, "valid": [(clear, red, title)], "test": [(one, red, clear)]}
    for split, rows in splits.items():
        lines = "".join("\t".join(row) + "\n" for row in rows)
        (folder / f"{split}.txt").write_text(lines, encoding="utf-8")
    return folder


def test_names_of_a_graph(
    tracking_store: Path, harmful_graph: Path, show: Show, tmp_path: Path
) -> None:
    files = {f"data__{s}": str(harmful_graph / f"{s}.txt") for s in ("train", "valid", "test")}
    train(small_config(**files, training__num_epochs=2), output_dir=tmp_path / "run")
    model, fact = str(tmp_path / "run"), [HARMFUL[name] for name in ("title", "red", "clear")]
    query = ["--head", fact[0], "--relation", fact[1]]
    for command in (
        ["predict", f"{model}/best", *query],
        ["tracin", model, "--test", ",".join(fact)],
    ):
        assert_harmless(show(lambda words=command: run_command(words)), *HARMFUL)


def test_names_of_runs(tracking_store: Path, show: Show) -> None:
    store = MlflowClient()
    experiment = store.create_experiment("e")
    tags = {names.TAG_KIND: "train", names.TAG_VARIANT: HARMFUL["red"]}
    store.create_run(experiment, run_name=HARMFUL["title"], tags=tags)
    assert_harmless(show(lambda: run_command(["runs"])), "title", "red")


def test_a_name_does_not_add_lines_to_a_list(tracking_store: Path, show: Show) -> None:
    client = MlflowClient()
    client.create_run(client.create_experiment("e"), run_name="one\nanother")
    _, line = show(lambda: run_command(["runs"])).splitlines()
    assert line.endswith(r"one\nanother")


def test_text_that_a_model_writes(show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = ["a line\n", "\tdéjà ", *HARMFUL.values()]
    monkeypatch.setattr("clew.workflows.predict_windows.predict_text", lambda *given: iter(pieces))
    text = show(lambda: run_command(["predict", "none", "--prompt", "x"]))
    assert text.startswith("a line\n\tdéjà ")
    assert_harmless(text, *HARMFUL)


def test_grey_is_for_terminals(show: Show, request: pytest.FixtureRequest) -> None:
    line = repr(HARMFUL["red"])[1:-1]
    text = show(lambda: tell(HARMFUL["red"], grey=True))
    is_terminal = "Terminal" in request.node.name
    assert text == (f"\x1b[90m{line}\x1b[0m\n" if is_terminal else f"{line}\n")
