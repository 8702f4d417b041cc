"""Packing a corpus: every source, resumption, and refused input."""

import gzip
import importlib.machinery
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import types
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tokenizers
import zstandard

from clew.config.data import PackSettings
from clew.errors import DataError, UsageError
from clew.language_modeling import documents
from clew.language_modeling import pretokenize as module
from clew.language_modeling.packed_tokens import TOKENS_FILE, open_packed
from clew.language_modeling.pretokenize import pretokenize
from clew.language_modeling.tokenizers import END_OF_TEXT, ByteTokenizer, load_tokenizer

END = 256
TEXTS = ["First document.\n", "Zweites: äöü €\n", "third\nin two lines"]


def packed_text(folder: Path) -> list[str]:
    """Return the documents of a pack of bytes."""
    tokens = open_packed(folder).tokens
    *documents_, rest = np.split(tokens, np.flatnonzero(tokens == END) + 1)
    assert not len(rest)
    return [d[:-1].astype(np.uint8).tobytes().decode() for d in documents_]


def settings(path: Path | str, **options: object) -> PackSettings:
    return PackSettings(**({"dataset": str(path), "chunk_size": 8} | options))  # type: ignore[arg-type]


def write_json_lines(path: Path) -> Path:
    lines = (json.dumps({"id": i, "text": t}) for i, t in enumerate(TEXTS))
    path.write_text("\n\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_parquet(path: Path) -> Path:
    pq.write_table(pa.table({"text": TEXTS, "id": [0, 1, 2]}), path, row_group_size=2)
    return path


def write_json_gz(path: Path) -> Path:
    """Write what C4 is published as."""
    path.write_bytes(gzip.compress(write_json_lines(path.with_suffix("")).read_bytes()))
    path.with_suffix("").unlink()
    return path


def write_zst(path: Path) -> Path:
    plain = write_json_lines(path.with_suffix(""))
    path.write_bytes(zstandard.compress(plain.read_bytes()))
    plain.unlink()
    return path


@pytest.mark.parametrize(
    ("write", "name"),
    [
        (write_json_lines, "a.jsonl"),
        (write_json_gz, "a.json.gz"),
        (write_parquet, "a.parquet"),
        (write_zst, "a.jsonl.zst"),
    ],
)
def test_documents_are_separated_whatever_the_source(tmp_path: Path, write, name: str):
    manifest = pretokenize(settings(write(tmp_path / name)), tmp_path / "packed")
    assert packed_text(tmp_path / "packed") == TEXTS
    assert manifest.num_documents == 3
    assert manifest.num_bytes == sum(len(t.encode()) for t in TEXTS)
    assert manifest.num_tokens == manifest.num_bytes + 3
    assert (manifest.vocabulary_size, manifest.dtype) == (257, "<u2")


def test_a_folder_is_read_in_order_of_names(tmp_path: Path):
    folder = tmp_path / "corpus"
    (folder / "b").mkdir(parents=True)
    (folder / "b" / "2.txt").write_text("two")
    (folder / "a.txt").write_text("one")
    (folder / "LICENSE.md").write_text("not text")
    (folder / "a_info.json").write_text('{"version": 1}')
    write_json_lines(folder / "c.jsonl")
    pretokenize(settings(folder), tmp_path / "packed")
    assert packed_text(tmp_path / "packed") == ["one", "two", *TEXTS]


@pytest.mark.parametrize("unit_bytes", [1, 7, 64, 10_000])
def test_a_text_file_is_one_document_however_it_is_cut(
    tmp_path: Path, unit_bytes: int, monkeypatch: pytest.MonkeyPatch
):
    text = "".join(f"line {i} of ümläuts\n" * (i % 3) for i in range(60)) + "no newline at the end"
    path = tmp_path / "corpus.txt"
    path.write_text(text, encoding="utf-8")
    monkeypatch.setattr(documents, "PIECE_BYTES", 11)
    monkeypatch.setattr(documents, "LONGEST_LINE_BYTES", 30)
    monkeypatch.setattr(
        module, "plan_units", lambda d: documents.plan_units(d, unit_bytes=unit_bytes)
    )
    pretokenize(settings(path), tmp_path / "packed")
    assert packed_text(tmp_path / "packed") == [text]


def test_a_very_long_line_is_cut_between_characters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(documents, "PIECE_BYTES", 7)
    monkeypatch.setattr(documents, "LONGEST_LINE_BYTES", 20)
    path = tmp_path / "line.txt"
    path.write_text("€" * 100, encoding="utf-8")
    pieces = list(documents.read_unit(documents.plan_units(str(path))[0], "text"))
    assert len(pieces) > 3
    assert "".join(piece.text.decode() for piece in pieces) == "€" * 100


def test_processes_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "corpus.txt"
    path.write_text("some words in a line\n" * 500)
    monkeypatch.setattr(module, "plan_units", lambda d: documents.plan_units(d, unit_bytes=4000))
    alone = pretokenize(settings(path), tmp_path / "one")
    together = pretokenize(settings(path), tmp_path / "two", num_proc=2)
    assert alone == together


def test_a_finished_pack_is_left_as_it_is_and_force_begins_anew(tmp_path: Path):
    path, output = tmp_path / "a.txt", tmp_path / "packed"
    path.write_text("hello")
    first = pretokenize(settings(path), output)
    before = (output / TOKENS_FILE).stat().st_mtime_ns
    assert pretokenize(settings(path, chunk_size=99), output) == first
    assert (output / TOKENS_FILE).stat().st_mtime_ns == before
    path.write_text("other text")
    with pytest.raises(DataError, match="contains a pack of other data or settings; choose"):
        pretokenize(settings(path), output)
    assert pretokenize(settings(path), output, force=True).num_bytes == 10


def test_max_chunks_keeps_whole_windows_and_their_last_successor(tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_text("x" * 1000)
    manifest = pretokenize(settings(path, max_chunks=3), tmp_path / "packed")
    assert manifest.num_tokens == 3 * 8 + 1


def test_units_that_are_done_are_not_tokenized_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path, output = tmp_path / "a.txt", tmp_path / "packed"
    path.write_text("some words\n" * 100)
    monkeypatch.setattr(module, "plan_units", lambda d: documents.plan_units(d, unit_bytes=100))
    expected = pretokenize(settings(path), tmp_path / "whole")
    read, calls = module.read_unit, []

    def failing(unit: documents.Unit, column: str):
        calls.append(unit.start)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return read(unit, column)

    monkeypatch.setattr(module, "read_unit", failing)
    with pytest.raises(KeyboardInterrupt):
        pretokenize(settings(path), output)
    assert not (output / "manifest.json").exists()
    interrupted_at, calls[:] = calls[-1], [-1] * 5
    assert pretokenize(settings(path), output) == expected
    assert calls[5] == interrupted_at


def test_a_killed_run_goes_on(tmp_path: Path):
    path, output = tmp_path / "a.txt", tmp_path / "packed"
    path.write_text("some words in a line\n" * 2000)
    program = f"""
import os, signal, sys
from clew.language_modeling import documents, pretokenize as m
m.plan_units = lambda d: documents.plan_units(d, unit_bytes=2000)
read = m.read_unit
parts = m.Path({str(output / "parts")!r})
def until_killed(unit, column):
    if "killed" in sys.argv and len(list(parts.glob("*.json"))) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return read(unit, column)
m.read_unit = until_killed
m.pretokenize(m.PackSettings(dataset={str(path)!r}, chunk_size=8), m.Path({str(output)!r}))
"""
    environment = os.environ | {"PYTHONPATH": "platform"}
    command = [sys.executable, "-c", program]
    killed = subprocess.run([*command, "killed"], env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(list((output / "parts").glob("*.json"))) == 3
    assert not (output / "manifest.json").exists()
    subprocess.run(command, env=environment, check=True)
    assert packed_text(output) == [path.read_text()]


def test_bytes_round_trip():
    tokenizer = ByteTokenizer()
    tokens = tokenizer.encode("Grüße".encode())
    assert tokenizer.decode(tokens) == "Grüße"
    assert tokenizer.decode(np.array([72, 105, 256, 89])) == f"Hi\n{END_OF_TEXT}\nY"


def test_a_local_bpe_vocabulary(tmp_path: Path):
    path, output = tmp_path / "a.txt", tmp_path / "packed"
    path.write_text("the cat sat on the mat, the cat sat\n" * 50)
    chosen = settings(path, tokenizer="bpe", vocabulary_size=280)
    manifest = pretokenize(chosen, output)
    tokenizer = load_tokenizer("bpe", output)
    packed = open_packed(output, tokenizer)
    assert manifest.vocabulary_size == tokenizer.vocabulary_size <= 280
    assert manifest.num_tokens < manifest.num_bytes / 2
    assert tokenizer.decode(packed.tokens[:-1]) == path.read_text()
    assert packed.tokens[-1] == tokenizer.end_of_text == manifest.end_of_text
    lengths = tokenizer.byte_lengths()
    assert lengths is not None
    assert lengths[packed.tokens].sum() == manifest.num_bytes
    # The same vocabulary from its file.
    other = settings(path, tokenizer=str(output / "tokenizer.json"))
    again = pretokenize(other, tmp_path / "again")
    assert again.fingerprint == manifest.fingerprint


def test_a_tokenizer_that_did_not_pack_the_data_is_refused(tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_text("the cat sat on the mat\n" * 50)
    pretokenize(settings(path, tokenizer="bpe", vocabulary_size=270), tmp_path / "bpe")
    with pytest.raises(DataError, match=r"packed with tokenizer 'bpe' .* but data.tokenizer gives"):
        open_packed(tmp_path / "bpe", ByteTokenizer())


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"", "an empty corpus; expected text"),
        ("a.txt", b"fine\n\xff\xfe broken", r"near byte 5: b'\\xff\\xfe broke' is not"),
        ("a.txt", b"cut off \xe2\x82", "is not UTF-8 text"),
        ("a.jsonl", b'{"text": "x"}\n{"text": 3}\n', "line 2: 3 is not text"),
        ("a.jsonl", b'{"text": "x"}\nnonsense\n', "line 2: b'nonsense' is not JSON"),
        ("a.jsonl", b'{"body": "x"}\n', "no text under 'text'; found body; set data.text_column"),
        ("a.parquet", b"nonsense", "not a readable Parquet file"),
        ("a.txt.gz", b"nonsense", "cannot be read"),
    ],
)
def test_bad_input_is_named(tmp_path: Path, name: str, content: bytes, message: str):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        pretokenize(settings(path), tmp_path / "packed")


def test_a_missing_column_or_source_is_named(tmp_path: Path):
    path = write_parquet(tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"no column 'body'; found text, id; set data.text_column"):
        pretokenize(settings(path, text_column="body"), tmp_path / "packed")
    with pytest.raises(DataError, match="no such file or folder"):
        pretokenize(settings(tmp_path / "missing.txt"), tmp_path / "packed")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"no text file in this folder; expected .txt"):
        pretokenize(settings(tmp_path / "empty"), tmp_path / "packed")
    with pytest.raises(DataError, match="cannot be read as a tokenizer"):
        pretokenize(settings(path, tokenizer="missing.json"), tmp_path / "packed")


WORDS = ["the", "cat", "sat", "on", "mat", "Grüße", "straße", "€uro", END_OF_TEXT]


def write_word_tokenizer(path: Path, **options: object) -> Path:
    """Write a tokenizer of whole words in lower case, without bytes."""
    vocabulary = {word.lower(): i for i, word in enumerate(WORDS)} | {"[UNK]": len(WORDS)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = tokenizers.normalizers.Lowercase()
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.enable_truncation(5)
    tokenizer.enable_padding(length=5)
    content = json.loads(tokenizer.to_str())
    for key, value in options.items():
        content["model"][key] = value
    path.write_text(json.dumps(content))
    return path


def test_end_of_text_in_a_document_ends_nothing(tmp_path: Path):
    texts = ["a web page about <|endoftext|> tokens " * 9, "<|endoftext|>", "an ordinary one\n" * 9]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(json.dumps({"text": text}) for text in texts))
    output = tmp_path / "packed"
    manifest = pretokenize(settings(path, tokenizer="bpe", vocabulary_size=300), output)
    tokenizer = load_tokenizer("bpe", output)
    tokens = open_packed(output, tokenizer).tokens
    ends = np.flatnonzero(tokens == tokenizer.end_of_text)
    assert len(ends) == manifest.num_documents == 3
    documents_ = [part[part != tokenizer.end_of_text] for part in np.split(tokens, ends)]
    assert [tokenizer.decode(document) for document in documents_[:3]] == texts


def test_a_vocabulary_with_end_of_text_as_a_word_splits_it(tmp_path: Path):
    tokenizer = load_tokenizer(str(write_word_tokenizer(tmp_path / "words.json")))
    tokens = tokenizer.encode(b"the cat <|endoftext|> sat <|EndOfText|>")
    assert tokenizer.end_of_text not in tokens
    assert tokens[[0, 1, -3]].tolist() == [0, 1, 2]
    unknown = write_word_tokenizer(tmp_path / "unknown.json", unk_token=END_OF_TEXT)
    with pytest.raises(DataError, match=r"unknown.json: this tokenizer encodes other text"):
        load_tokenizer(str(unknown)).encode(b"the dog")


def test_a_vocabulary_can_leave_out_ids(tmp_path: Path):
    path = write_word_tokenizer(tmp_path / "words.json")
    content = json.loads(path.read_text())
    content["model"]["vocab"] = {word: 3 * i for word, i in content["model"]["vocab"].items()}
    path.write_text(json.dumps(content))
    tokenizer = load_tokenizer(str(path))
    tokens = tokenizer.encode(b"the cat dog")
    assert tokenizer.end_of_text not in tokens
    assert tokens.max() < tokenizer.vocabulary_size


def test_a_tokenizer_file_neither_cuts_nor_pads(tmp_path: Path):
    tokenizer = load_tokenizer(str(write_word_tokenizer(tmp_path / "words.json")))
    assert len(tokenizer.encode(b"the cat sat on the mat " * 10)) == 60
    assert len(tokenizer.encode(b"the")) == 1


def test_bpe_is_trained_on_the_training_text_alone(tmp_path: Path):
    """The held-out text repeats a word that a vocabulary trained on it would contain."""
    path = tmp_path / "a.txt"
    path.write_text("the cat sat on the mat\n" * 900 + "zyxwvu zyxwvu\n" * 150)
    chosen = settings(path, tokenizer="bpe", vocabulary_size=300, held_out_fraction=0.1)
    manifest = pretokenize(chosen, tmp_path / "packed")
    assert "zyx" not in (tmp_path / "packed" / "tokenizer.json").read_text()
    packed = open_packed(tmp_path / "packed")
    tokenizer = load_tokenizer("bpe", tmp_path / "packed")
    seen = int(0.9 * path.stat().st_size)
    before, through = (
        len(tokenizer.decode(packed.tokens[:count]))
        for count in (manifest.tokenizer_tokens - 1, manifest.tokenizer_tokens)
    )
    assert before < seen <= through
    pretokenize(chosen.model_copy(update={"held_out_fraction": 0.0}), tmp_path / "all")
    assert "zyx" in (tmp_path / "all" / "tokenizer.json").read_text()


def test_bpe_of_a_limited_pack_sees_no_more_than_its_windows(tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_text("".join(f"line {i} of a text\n" for i in range(2000)))
    manifest = pretokenize(
        settings(path, tokenizer="bpe", vocabulary_size=300, max_chunks=50), tmp_path / "packed"
    )
    assert manifest.num_tokens == 401
    assert 0 < manifest.tokenizer_tokens <= 0.9 * manifest.num_tokens
    tokenizer = load_tokenizer("bpe", tmp_path / "packed")
    assert manifest.num_bytes == len(tokenizer.decode(open_packed(tmp_path / "packed").tokens))
    assert manifest.num_documents == 0


@pytest.mark.parametrize("processes", [1, 2])
def test_the_bytes_of_tokens_that_are_no_bytes_are_those_of_the_text(
    tmp_path: Path, processes: int, monkeypatch: pytest.MonkeyPatch
):
    texts = ["the  cat sat on Grüße\n", "", " \n ", "€uro unknownword straße the", "mat\n\n"]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(json.dumps({"text": text}) for text in texts))
    monkeypatch.setattr(module, "plan_units", lambda d: documents.plan_units(d, unit_bytes=60))
    tokenizer = write_word_tokenizer(tmp_path / "words.json")
    chosen = settings(path, tokenizer=str(tokenizer))
    manifest = pretokenize(chosen, tmp_path / "packed", num_proc=processes)
    packed = open_packed(tmp_path / "packed")
    assert packed.lengths is not None
    ends = np.flatnonzero(packed.tokens == manifest.end_of_text)
    each = [int(part.sum()) for part in np.split(packed.lengths, ends + 1)[:-1]]
    assert each == [len(text.encode()) for text in texts]
    first = packed.lengths[:5].tolist()
    assert first == [3, 5, 4, 3, 1 + len("Grüße".encode()) + 1]
    assert manifest.num_bytes == sum(each)


def test_byte_level_tokenizers_that_change_the_text_are_counted_by_its_bytes(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(json.dumps({"text": "wörd word"}) for _ in range(50)))
    pretokenize(settings(path, tokenizer="bpe", vocabulary_size=270), tmp_path / "bpe")
    content = json.loads((tmp_path / "bpe" / "tokenizer.json").read_text())
    content["pre_tokenizer"]["add_prefix_space"] = True
    (tmp_path / "prefix.json").write_text(json.dumps(content))
    assert tokenizers.Tokenizer.from_file(str(tmp_path / "prefix.json"))
    assert load_tokenizer(str(tmp_path / "prefix.json")).byte_lengths() is None
    pretokenize(settings(path, tokenizer=str(tmp_path / "prefix.json")), tmp_path / "packed")
    lengths = open_packed(tmp_path / "packed").lengths
    assert lengths is not None
    assert lengths.sum() == 50 * len("wörd word".encode())


@pytest.mark.parametrize("name", ["b.txt", "b.txt.gz"])
def test_an_empty_file_is_an_empty_document(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
):
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "a.txt").write_text("one")
    (folder / name).write_bytes(gzip.compress(b"") if name.endswith("gz") else b"")
    (folder / "c.txt").write_text("two")
    manifest = pretokenize(settings(folder), tmp_path / "packed")
    assert packed_text(tmp_path / "packed") == ["one", "", "two"]
    assert manifest.num_documents == 3
    assert name.endswith("gz") or "b.txt: empty file; it is packed as an empty" in caplog.text


def test_packs_of_an_earlier_version(tmp_path: Path):
    path, output = tmp_path / "a.txt", tmp_path / "packed"
    path.write_text("hello")
    pretokenize(settings(path), output)
    manifest = output / "manifest.json"
    content = json.loads(manifest.read_text()) | {"schema_version": 1}
    manifest.write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"schema_version is 1, .*pack the corpus again"):
        open_packed(output)


def test_a_truncated_memory_map_is_noticed(tmp_path: Path):
    path, output = tmp_path / "a.txt", tmp_path / "packed"
    path.write_text("x" * 100)
    pretokenize(settings(path), output)
    with (output / TOKENS_FILE).open("r+b") as file:
        file.truncate(100)
    with pytest.raises(DataError, match="100 bytes, but the manifest says 101 tokens of 2"):
        open_packed(output)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    (tmp_path / "t.json").write_text("{}")
    with pytest.raises(UsageError, match="package tokenizers"):
        load_tokenizer(str(tmp_path / "t.json"))


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_a_byte_order_mark_is_no_text(tmp_path: Path, name: str):
    folder = tmp_path / "corpus"
    folder.mkdir()
    content = "\ufeffone\r\ntwo \ufeff three".encode()
    (folder / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    manifest = pretokenize(settings(folder), tmp_path / "packed")
    assert packed_text(tmp_path / "packed") == ["one\r\ntwo \ufeff three"]
    assert manifest.num_bytes == len(content) - 3


@pytest.mark.parametrize("name", ["a.tar.gz", "a.tgz", "a.zip", "a.TAR"])
def test_an_archive_is_no_text(tmp_path: Path, name: str):
    path = tmp_path / name
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("inner.txt"))
    packed = content.getvalue()
    path.write_bytes(gzip.compress(packed) if name.endswith("gz") else packed)
    with pytest.raises(DataError, match="unpack"):
        pretokenize(settings(path), tmp_path / "packed")


def test_another_tokenizer_under_the_same_name_is_noticed(tmp_path: Path):
    """Parts of an interrupted pack and the kept tokenizer belong together."""
    path, words, output = tmp_path / "a.txt", tmp_path / "words.json", tmp_path / "packed"
    path.write_text("the cat sat on the mat\n")
    chosen = settings(path, tokenizer=str(write_word_tokenizer(words)))
    first = pretokenize(chosen, output)
    write_word_tokenizer(words, unk_token="the")
    with pytest.raises(DataError):
        pretokenize(chosen, output)
    assert open_packed(output, load_tokenizer("bpe", output)).manifest == first
    again = pretokenize(chosen, output, force=True)
    assert again.fingerprint != first.fingerprint
    kept = chosen.model_copy(update={"tokenizer": str(output / "tokenizer.json")})
    assert pretokenize(kept, output, force=True).fingerprint == again.fingerprint


def test_rows_of_hugging_face_without_text_are_no_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    rows: list[dict[str, object]] = [{"text": "one"}, {"text": None}, {"text": "two"}]
    fake = types.ModuleType("datasets")
    fake.__dict__["load_dataset"] = lambda *_, **__: rows
    fake.__dict__["__spec__"] = importlib.machinery.ModuleSpec("datasets", None)
    fake.__dict__["exceptions"] = types.SimpleNamespace(DatasetsError=OSError)
    monkeypatch.setitem(sys.modules, "datasets", fake)
    pretokenize(settings("some-texts"), tmp_path / "packed")
    assert packed_text(tmp_path / "packed") == ["one", "two"]
    rows.append({"text": 7})
    with pytest.raises(DataError, match="7"):
        pretokenize(settings("some-texts"), tmp_path / "again")


def test_text_in_two_bytes_a_character_is_noticed(tmp_path: Path):
    """Without a byte order mark, UTF-16 of English is valid UTF-8 with many zero bytes."""
    path = tmp_path / "a.txt"
    path.write_bytes(("hello world\n" * 20).encode("utf-16-le"))
    with pytest.raises(DataError, match="UTF-8"):
        pretokenize(settings(path), tmp_path / "packed")


def test_a_tokenizer_that_makes_giant_text_is_refused(tmp_path: Path):
    """Ten replacements of a letter by ten take a kilobyte, and make gigabytes of one word."""
    path = write_word_tokenizer(tmp_path / "words.json")
    content = json.loads(path.read_text())
    longer = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10}
    for count, works in ((1, True), (10, False)):
        content["normalizer"] = {"type": "Sequence", "normalizers": [longer] * count}
        path.write_text(json.dumps(content))
        if works:
            assert len(load_tokenizer(str(path)).encode(b"the cat")) == 2
        else:
            with pytest.raises(DataError, match=r"words\.json"):
                load_tokenizer(str(path))
