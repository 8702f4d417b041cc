"""`predict` with a prompt, for a language model that the real command trained."""

import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from clew import names
from clew.__main__ import run as run_command
from clew.errors import CheckpointError, ConfigError, DataError, UsageError, harmless
from clew.language_modeling.model import EigenstateLM, Sampling
from clew.language_modeling.tokenizers import encode_prompt
from clew.runs.reading.runs import download_artifact
from clew.workflows.model_source import load_source, open_model
from clew.workflows.predict_windows import TextRequest, predict_text
from tests.edited import edit_manifest
from tests.language_modeling.test_generation import letters_tokenizer
from tests.workflows.conftest import run_of
from tests.workflows.trained import (
    StoredRun,
    TrainedStore,
    copy_store,
    dispose_of,
    text_config,
    use_store,
)

PROMPT = "3 green bottles"


def said(
    model: str,
    prompt: str = PROMPT,
    max_tokens: int = 60,
    *,
    temperature: float = 1.0,
    top_p: float = 1.0,
    seed: int | None = None,
    state: Path | None = None,
) -> str:
    sampling = Sampling(temperature, top_p=top_p)
    return "".join(predict_text(model, TextRequest(prompt, max_tokens, sampling, seed, state)))


def test_text_is_that_of_full_passes_over_all_of_it(text: StoredRun) -> None:
    """A slow reference draws each token from the parallel form over the whole text so far."""
    with open_model(text.run_id) as source:
        model = load_source(source).model.eval()
    assert isinstance(model, EigenstateLM)
    generator = torch.Generator().manual_seed(7)
    tokens = list(PROMPT.encode())
    for _ in range(60):
        with torch.no_grad():
            logits = model.logits(model(torch.tensor([tokens])))[0, -1]
        probabilities = torch.softmax(logits / 0.7, dim=-1)
        tokens.append(int(torch.multinomial(probabilities, 1, generator=generator)))
    assert 256 not in tokens
    expected = bytes(tokens[len(PROMPT) :]).decode("utf-8", "replace")
    assert said(text.run_id, temperature=0.7, seed=7) == expected


def test_the_same_seed_gives_the_same_text(text: StoredRun) -> None:
    one = said(text.run_id, seed=1)
    assert one == said(text.run_id, seed=1)
    assert one != said(text.run_id, seed=2)
    assert said(text.run_id) == said(text.run_id, seed=0)
    assert said(text.run_id, temperature=0.0, seed=1) == said(text.run_id, temperature=0.0, seed=2)
    assert said(text.run_id, top_p=1e-6, seed=1) == said(text.run_id, temperature=0.0)


@pytest.mark.parametrize("first", [0, 1, 23, 60])
def test_two_calls_with_a_state_are_one_long_call(
    text: StoredRun, tmp_path: Path, first: int
) -> None:
    """At temperature 3 few bytes form characters, so calls can end inside a character."""
    state = tmp_path / "state"
    parts = [said(text.run_id, max_tokens=first, temperature=3.0, seed=4, state=state)]
    parts.append(said(text.run_id, "", max_tokens=60 - first, temperature=3.0, state=state))
    whole = said(text.run_id, temperature=3.0, seed=4, state=tmp_path / "other")
    assert "".join(parts) == whole
    assert whole == said(text.run_id, temperature=3.0, seed=4)[: len(whole)]
    tail = said(text.run_id, "", max_tokens=9, temperature=3.0, state=state)
    assert tail == said(text.run_id, "", max_tokens=9, temperature=3.0, state=tmp_path / "other")


def test_a_prompt_may_come_in_parts(text: StoredRun, tmp_path: Path) -> None:
    state = tmp_path / "state"
    assert not said(text.run_id, "3 green", max_tokens=0, state=state)
    parts = said(text.run_id, " bottles", temperature=0.0, state=state)
    assert parts == said(text.run_id, temperature=0.0)
    again = said(text.run_id, "", seed=3, state=state)
    assert again
    assert sorted(path.name for path in tmp_path.iterdir()) == ["state"]


def test_a_model_needs_its_text_no_more(text: StoredRun, tmp_path: Path) -> None:
    expected = said(text.run_id)
    best = download_artifact(text.run_id, names.ARTIFACT_BEST, tmp_path)
    for path in (text.folder / "corpus.txt", text.folder / "packed"):
        shutil.move(path, tmp_path)
    try:
        assert said(text.run_id) == expected
        assert said(str(best)) == expected
        download_artifact(text.run_id, "tokens.json", tmp_path)
        forget_run(best)
        assert said(str(best)) == expected
        (tmp_path / "tokens.json").unlink()
        with pytest.raises(UsageError, match="corpus"):
            said(str(best))
    finally:
        for name in ("corpus.txt", "packed"):
            shutil.move(tmp_path / name, text.folder)
    assert said(str(best)) == expected


def forget_run(checkpoint: Path) -> None:
    """Change a checkpoint so that it belongs to no run."""
    edit_manifest(checkpoint, lambda manifest: manifest.update(run_id=""))


def test_tokens_of_another_text_are_refused(text: StoredRun, tmp_path: Path) -> None:
    best = download_artifact(text.run_id, names.ARTIFACT_BEST, tmp_path)
    tokens = download_artifact(text.run_id, "tokens.json", tmp_path)
    content = json.loads(tokens.read_text(encoding="utf-8"))
    tokens.write_text(json.dumps(content | {"fingerprint": "other"}), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"was trained on text \w+, but .* of text other"):
        said(str(best))


@pytest.fixture(scope="module")
def other_run(
    store_template: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StoredRun]:
    """Return a model of the same sizes with another vocabulary."""
    folder = tmp_path_factory.mktemp("bpe")
    uri = copy_store(store_template, folder)
    with pytest.MonkeyPatch.context() as patch:
        use_store(patch, uri)
        settings = {"data__tokenizer": "bpe", "data__vocabulary_size": 270}
        run_id = run_of(text_config(folder, **settings))
    yield StoredRun(uri, run_id, folder)
    dispose_of(uri)


def test_a_run_records_its_tokenizer(
    other_run: StoredRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_store(monkeypatch, other_run.uri)
    state = tmp_path / "state"
    whole = said(other_run.run_id, "grüne 世界", temperature=2.0)
    shutil.move(other_run.folder / "packed", tmp_path / "packed")
    assert said(other_run.run_id, "grüne 世界", temperature=2.0) == whole
    parts = [said(other_run.run_id, "grüne 世界", 20, temperature=2.0, state=state)]
    parts.append(said(other_run.run_id, "", 40, temperature=2.0, state=state))
    shown = "".join(parts)
    assert whole.startswith(shown)
    # An incomplete character waits in the state.
    assert set(whole[len(shown) :]) <= {"\N{REPLACEMENT CHARACTER}"}


def test_the_state_of_another_model_is_refused(
    text: StoredRun, other_run: StoredRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state"
    said(text.run_id, state=state)
    before = state.read_bytes()
    use_store(monkeypatch, other_run.uri)
    with pytest.raises(CheckpointError, match="the state of a model with weights"):
        said(other_run.run_id, state=state)
    assert state.read_bytes() == before


def test_command_line(
    text: StoredRun,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def clew(*arguments: str) -> str:
        assert run_command(["predict", f"--model={text.run_id}", *arguments]) == 0
        return capsys.readouterr().out

    # As MLproject passes it: with every option, and empty values for those that were not given.
    shown = clew(f"--prompt={PROMPT}", "--prompt-file=", "--max-tokens=", "--head=", "--state=")
    assert shown == harmless(said(text.run_id, max_tokens=200)) + "\n"
    shown = clew(f"--prompt={PROMPT}", "--max-tokens=60", "--top-p=.9", "--seed=3", "--json")
    content = json.loads(shown)
    assert content["text"] == said(text.run_id, top_p=0.9, seed=3)
    path = tmp_path / "prompt.txt"
    path.write_text(PROMPT, encoding="utf-8-sig")  # with a byte order mark
    assert clew(f"--prompt-file={path}", "--max-tokens=60") == harmless(said(text.run_id)) + "\n"
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(PROMPT.encode())))
    assert clew("--prompt-file=-", "--max-tokens=60") == harmless(said(text.run_id)) + "\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prompt="], "is a language_modeling model; only link prediction answers queries by"),
        (
            ["--prompt=", "--max-tokens=5"],
            "no prompt given; expected text to continue, as --prompt",
        ),
        (["--state=nothing"], "no prompt given, and nothing does not exist; expected text"),
        (
            ["--prompt=caf\udce9"],
            r"--prompt is 'caf\udce9'; expected valid Unicode text without NUL characters",
        ),
        (["--prompt-file=latin.txt"], "latin.txt: byte 3 is 0xe9, which is not valid UTF-8"),
        (["--prompt-file=empty.txt"], "no prompt given"),
        (["--prompt-file=none.txt"], "none.txt: cannot be read as a prompt (No such file"),
        (["--prompt=a", "--prompt-file=b"], "--prompt and --prompt-file are both given"),
        (["--prompt=a", "--temperature=-1"], "--temperature is '-1'"),
        (["--prompt=a", "--top-p=0"], "--top-p is '0'"),
        (["--prompt=a", "--max-tokens=-1"], "--max-tokens is '-1'"),
        (["--prompt=a", "--seed=x"], "--seed is 'x'"),
        (["--prompt=a", "--head=b"], "--head and --prompt are for models of different tasks"),
        (["--prompt=a", "--frames=b"], "--prompt and --frames are for models of different tasks"),
        (
            ["--head=a", "--relation=b"],
            "this model with clew predict --prompt or --prompt-file",
        ),
        (["--frames=.", "--output=x.parquet"], "only models of image sequences predict frames"),
        (["--prompt=a", "--state=latin.txt"], "latin.txt: not a readable state"),
        (["--prompt=a", "--state=."], "--state .: is a folder; name a file"),
    ],
)
def test_wrong_use_is_one_line(
    text: StoredRun,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 is what we had")
    (tmp_path / "empty.txt").write_bytes(b"")
    assert run_command(["predict", f"--model={text.run_id}", *arguments]) == 2
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert line.startswith("clew: error: ")
    assert message in line
    assert captured.out == ""


def test_an_unknown_model(text: StoredRun, capsys: pytest.CaptureFixture[str]) -> None:
    for model, message in (("0123", "no run 0123"), ("models:/none@champion", "no model 'none'")):
        assert run_command(["predict", f"--model={model}", "--prompt=a"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert message in line


def test_a_graph_model_does_not_continue_text(trained: TrainedStore) -> None:
    with pytest.raises(ConfigError, match=r"link_prediction model; only language models .*--head"):
        said(trained.strong)


def test_a_character_that_the_tokenizer_lacks(text: StoredRun, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="ç"):
        encode_prompt(letters_tokenizer(tmp_path), "abç")
