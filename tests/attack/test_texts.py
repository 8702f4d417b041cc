"""Text: plain, JSON Lines, Parquet, compressed; packs, tokenizers and paused texts."""

import gzip
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tokenizers
import zstandard
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from clew.config.data import TokenData
from clew.language_modeling.documents import plan_units, read_unit
from clew.language_modeling.model_folder import load_text_folder
from clew.language_modeling.state_file import read_paused
from clew.language_modeling.tokenizers import FileTokenizer, train_bpe
from clew.language_modeling.tokens import load_tokens
from clew.language_modeling.writer import TextWriter
from tests.attack.cases import attempt, fuzz
from tests.attack.damage import as_json, damaged_bytes, damaged_json, texts
from tests.attack.material import Material
from tests.attack.test_reports import damaged_parquet

pytestmark = pytest.mark.slow

TEXT = "".join(f"{i % 7} green bottles on a wall, naïve – 壁\n" for i in range(40)).encode()
PACKED: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}
"""Suffix to how such a file is made."""


def read(path: Path, column: str) -> None:
    """Read a whole corpus, in units so small that it has several."""
    for unit in plan_units(str(path), unit_bytes=512):
        for piece in read_unit(unit, column):
            piece.text.decode()


def parquet() -> bytes:
    written = io.BytesIO()
    pq.write_table(pa.table({"text": TEXT.decode().split("\n"), "n": range(41)}), written)
    return written.getvalue()


def test_corpora(place: Path) -> None:
    lines = b"".join(as_json({"text": f"{i} bottles"}) + b"\n" for i in range(30))
    table = parquet()

    def case(draw: DrawFn) -> None:
        kind = draw(st.sampled_from([".txt", ".jsonl", ".parquet"]))
        suffix = "" if kind == ".parquet" else draw(st.sampled_from(sorted(PACKED)))
        path = place / f"corpus{kind}{suffix}"
        if kind == ".parquet":
            path.write_bytes(damaged_parquet(draw, table))
        else:
            first = draw(damaged_json({"text": "x"})) + b"\n" if draw(st.booleans()) else b""
            content = first + draw(damaged_bytes(lines if kind == ".jsonl" else TEXT))
            packed = PACKED[suffix](content)
            path.write_bytes(draw(damaged_bytes(packed)) if suffix else packed)
        column = draw(st.one_of(st.just("text"), texts))
        attempt(lambda: read(path, column))

    fuzz(0.04, case)


def test_packs(material: Material, place: Path) -> None:
    source, folder = material.folder / "text/packed", place / "packed"
    names = sorted(path.name for path in source.iterdir() if path.is_file())

    def load() -> None:
        windows = load_tokens(TokenData(packed=str(folder)), window=28).windows["train"]
        windows.batch(np.arange(len(windows)))

    def case(draw: DrawFn) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(source, folder)
        path = folder / draw(st.sampled_from(names))
        content = path.read_bytes()
        if path.suffix == ".json" and draw(st.booleans()):
            path.write_bytes(draw(damaged_json(json.loads(content))))
        else:
            path.write_bytes(draw(damaged_bytes(content)))
        attempt(load)

    fuzz(0.02, case)


def test_tokenizers(place: Path) -> None:
    path = place / "tokenizer.json"
    train_bpe(iter([TEXT.decode()]), 300, path)
    model = tokenizers.models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]")
    words = tokenizers.Tokenizer(model)
    sources = [path.read_bytes(), words.to_str().encode()]

    def use() -> None:
        tokenizer = FileTokenizer(path)
        tokens, lengths = tokenizer.encode_with_bytes(TEXT[:200])
        tokenizer.byte_lengths()
        tokenizer.decode(tokens)
        tokenizer.first_unknown("a wall")
        assert len(tokens) == len(lengths)

    def case(draw: DrawFn) -> None:
        content = draw(st.sampled_from(sources))
        if draw(st.booleans()):
            path.write_bytes(draw(damaged_json(json.loads(content))))
        else:
            path.write_bytes(draw(damaged_bytes(content)))
        attempt(use)

    fuzz(0.02, case)


def test_paused_texts(material: Material, place: Path) -> None:
    text_model = load_text_folder(material.model("text"))
    path = place / "state.safetensors"
    writer = TextWriter(text_model, seed=0)
    writer.read("3 green")
    writer.paused().write(path, "0" * 16)
    whole = path.read_bytes()
    head = 8 + int.from_bytes(whole[:8], "little")

    def case(draw: DrawFn) -> None:
        cut = draw(st.sampled_from([head, len(whole)]))
        path.write_bytes(draw(damaged_bytes(whole[:cut])) + whole[cut:])
        attempt(lambda: read_paused(path, text_model.model, "0" * 16))

    fuzz(0.01, case)
