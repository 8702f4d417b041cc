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
from clew.language_modeling.model import Sampling
from clew.language_modeling.tokenizers import FileTokenizer, train_bpe
from clew.language_modeling.tokens import load_tokens
from clew.language_modeling.writer import TextWriter, load_text_folder, read_paused
from clew.workflows.predict_windows import read_prompt, read_texts
from tests.attack.cases import attempt, fuzz, replaced
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
    """Read a whole corpus in small units, so that it has several."""
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

    fuzz(0.03, case)


def test_packs(material: Material, place: Path) -> None:
    folder = Path(shutil.copytree(material.folder / "text/packed", place / "packed"))
    paths = sorted(path for path in folder.iterdir() if path.is_file())

    def load() -> None:
        windows = load_tokens(TokenData(packed=str(folder)), window=28).windows["train"]
        windows.batch(np.arange(len(windows)))

    def case(draw: DrawFn) -> None:
        path = draw(st.sampled_from(paths))
        content = path.read_bytes()
        if path.suffix == ".json" and draw(st.booleans()):
            changed = draw(damaged_json(json.loads(content)))
        else:
            changed = draw(damaged_bytes(content))
        with replaced(path, changed):
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

    def go_on() -> None:
        writer = TextWriter(text_model, read_paused(path, text_model.model, "0" * 16))
        list(writer.write(1, Sampling()))
        writer.paused().write(path, "0" * 16)

    def case(draw: DrawFn) -> None:
        start, end = draw(st.sampled_from([(0, head), (0, len(whole)), (head, len(whole))]))
        path.write_bytes(whole[:start] + draw(damaged_bytes(whole[start:end])) + whole[end:])
        attempt(go_on)

    fuzz(0.01, case)


def test_prompts_in_files(place: Path) -> None:
    path = place / "prompts"
    rows = as_json({"prompt": "3 green", "continuation": " bottles"}) + b"\n"

    def case(draw: DrawFn) -> None:
        if draw(st.booleans()):
            path.write_bytes(draw(damaged_bytes(rows * 2)) + draw(damaged_json({"prompt": "x"})))
            attempt(lambda: read_texts(path))
        else:
            path.write_bytes(draw(damaged_bytes(TEXT[:200])))
            attempt(lambda: read_prompt(str(path), io.BytesIO()))

    fuzz(0.01, case)
