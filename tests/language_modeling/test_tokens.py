"""Windows of a packed corpus: their content, splits, workers, and refused input."""

import itertools
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from clew.config.data import TokenData
from clew.config.training import TrainingConfig
from clew.errors import ConfigError, DataError
from clew.language_modeling.tokens import TokenSplits, find_text, load_tokens
from clew.training.loaders import BatchLoader

TEXT = "".join(f"{i:03d} some text\n" for i in range(200))


@pytest.fixture
def splits(tmp_path: Path) -> TokenSplits:
    return open_text(tmp_path)


def open_text(tmp_path: Path, text: str = TEXT, window: int = 16, **options: Any) -> TokenSplits:
    path = tmp_path / "corpus.txt"
    if not path.exists():
        path.write_text(text)
    config = TokenData(dataset=str(path), packed=str(tmp_path / "packed"), **options)
    return load_tokens(config, window=window)


def test_every_token_has_its_successor_and_none_is_lost(splits: TokenSplits):
    windows = splits.windows["train"]
    batch = windows.batch(np.arange(len(windows)))
    text = np.frombuffer(TEXT.encode(), dtype=np.uint8)
    assert batch.inputs.shape == batch.targets.shape == (len(windows), 16)
    assert torch.equal(batch.inputs[1:, 0], batch.targets[:-1, -1])
    assert batch.inputs.flatten().tolist() == text[: len(windows) * 16].tolist()
    assert batch.targets.flatten().tolist() == text[1 : len(windows) * 16 + 1].tolist()
    assert batch.count == batch.units()["tokens"] == len(windows) * 16


@pytest.mark.parametrize("stride", [1, 5, 16, 40])
def test_windows_may_overlap(tmp_path: Path, stride: int):
    windows = open_text(tmp_path, stride=stride).windows["train"]
    text = np.frombuffer(TEXT.encode(), dtype=np.uint8)[: windows.end].tolist()
    batch = windows.batch(np.arange(len(windows)))
    for i, row in enumerate(batch.tokens.tolist()):
        assert row == text[i * stride : i * stride + 17]
    assert len(text) - len(windows) * stride < 17  # no further window would fit
    assert open_text(tmp_path, stride=stride).windows["test"].stride == 16


def test_splits_follow_each_other_and_cover_everything(splits: TokenSplits):
    streams = [splits.windows[name].stream for name in ("train", "valid", "test")]
    assert [len(s) for s in streams] == [2521, 140, 140]
    assert np.array_equal(np.concatenate(streams), splits.packed.tokens)
    test = splits.windows["test"]
    assert splits.num_bytes(test.start, test.end) == 139  # the last token ends the text


def test_validation_begins_after_what_the_tokenizer_has_seen(tmp_path: Path):
    """The end of this text compresses better, so its share of text exceeds its share of tokens."""
    rng = np.random.default_rng(0)
    noise = "".join(map(chr, rng.integers(97, 123, 6000)))
    text = noise + "\n" + "the same words again and again\n" * 300
    options: dict[str, Any] = {"tokenizer": "bpe", "vocabulary_size": 300}
    splits = open_text(tmp_path, text, valid_fraction=0.3, test_fraction=0.1, **options)
    seen, size = splits.packed.manifest.tokenizer_tokens, splits.packed.manifest.num_tokens
    assert seen > 0.6 * size, "not the case that this test is about"
    assert splits.windows["train"].end == splits.windows["valid"].start == seen
    assert splits.num_bytes(0, seen) >= int(0.6 * len(text))
    assert splits.num_bytes(0, size) == len(text)
    config = TokenData(packed=str(tmp_path / "packed"), tokenizer="bpe", test_fraction=0.6)
    with pytest.raises(DataError):
        load_tokens(config, window=16)


def test_a_worker_reopens_the_map_instead_of_copying_it(splits: TokenSplits):
    windows = splits.windows["valid"]
    content = pickle.dumps(windows)
    assert len(content) < 1000
    again = pickle.loads(content)
    indices = np.array([2, 0])
    assert torch.equal(again.batch(indices).tokens, windows.batch(indices).tokens)
    assert isinstance(again.packed.tokens, np.memmap)


def orders(splits: TokenSplits, cursor: int = 0, **settings: Any) -> list[list[int]]:
    loader = BatchLoader(splits.windows["train"], TrainingConfig(batch_size=40, seed=3, **settings))
    return [batch.ids.tolist() for batch in loader.epoch(1, cursor)]


def test_the_order_depends_on_seed_epoch_and_cursor_alone(splits: TokenSplits):
    expected = orders(splits)
    assert sorted(itertools.chain(*expected)) == list(range(len(splits.windows["train"])))
    assert orders(splits, cursor=2) == expected[2:]
    assert orders(splits, num_workers=2, prefetch_factor=1) == expected


@pytest.mark.parametrize(
    ("context", "persistent", "pin"),
    [
        pytest.param("spawn", True, True, marks=pytest.mark.slow),
        ("fork", True, False),
        ("fork", False, True),
        pytest.param("forkserver", False, False, marks=pytest.mark.slow),
    ],
)
def test_loader_settings_go_together(
    splits: TokenSplits, context: str, persistent: bool, pin: bool
):
    found = orders(
        splits,
        num_workers=1,
        pin_memory=pin,
        persistent_workers=persistent,
        prefetch_factor=3,
        multiprocessing_context=context,
    )
    assert found == orders(splits)


def test_a_window_longer_than_the_text_is_refused(tmp_path: Path):
    with pytest.raises(DataError):
        open_text(tmp_path, window=4096)


def test_another_window_needs_no_other_pack(tmp_path: Path):
    first = open_text(tmp_path, window=16)
    assert open_text(tmp_path, window=64).packed.manifest == first.packed.manifest


def test_a_pack_alone_is_enough(tmp_path: Path):
    open_text(tmp_path)
    (tmp_path / "corpus.txt").unlink()
    splits = load_tokens(TokenData(packed=str(tmp_path / "packed")), window=32)
    assert len(splits.windows["train"]) == 78
    with pytest.raises(DataError, match=r"manifest.json"):
        load_tokens(TokenData(packed=str(tmp_path / "missing")), window=32)


def test_without_a_folder_the_pack_is_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "corpus.txt"
    path.write_text(TEXT)
    config = TokenData(dataset=str(path))
    first = load_tokens(config, window=16).packed
    assert first.folder.parent == tmp_path / "cache" / "clew" / "tokens"
    assert load_tokens(config, window=16).packed.folder == first.folder
    path.write_text(TEXT + "more")
    assert load_tokens(config, window=16).packed.folder != first.folder


def test_an_unknown_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CLEW_DATA", str(tmp_path))
    with pytest.raises(ConfigError, match=r"data.name"):
        find_text("novels")
    for name in ("../novels", str(tmp_path)):
        with pytest.raises(ConfigError, match="CLEW_DATA"):
            find_text(name)
    monkeypatch.delenv("CLEW_DATA")
    with pytest.raises(ConfigError, match="CLEW_DATA"):
        find_text("novels")
