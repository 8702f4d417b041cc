"""Files that a stranger could hand in: what leads out of them, and what takes gigabytes."""

import gzip
import os
import resource
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clew import input_files as text_blocks
from clew.errors import DataError
from clew.image_sequences.files import COLUMNS, handed_in_frames, read_frames
from clew.language_modeling.documents import plan_units, read_unit
from clew.language_modeling.tokenizers import FileTokenizer
from clew.link_prediction.given_negatives import read_given_negatives
from clew.runs.influence_forms import SCORE_COLUMN, TERM_COLUMNS, TEST_INDEX_COLUMN
from clew.runs.reading.reports import admitted
from clew.untrusted import MEMORY_MIB, LimitedReader, read_limited
from tests.image_sequences.sequence_files import METADATA, sequence_columns, write_hdf5

ROOT = Path(__file__).resolve().parents[1]
COUNT = 48
WIDTH = 8
SECRET = "must stay unread"
ANSWERS = "tests.limited_answers"


@pytest.fixture(autouse=True)
def this_code_in_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (ROOT, ROOT / "platform"))))


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret.txt"
    path.write_text((f"password = {SECRET}\n" * COUNT)[: COUNT * WIDTH])
    return path


@pytest.fixture
def frames(tmp_path: Path) -> Path:
    return write_hdf5(tmp_path / "frames.h5", sequence_columns())


def refused(path: Path, read: Callable[[Path], object] = read_frames) -> str:
    """Return why a file is refused; the file that plays a secret is read by nobody."""
    with pytest.raises(DataError) as caught:
        read(path)
    line = str(caught.value)
    assert line.startswith(str(path))
    assert len(line.splitlines()) == 1
    assert SECRET[:WIDTH] not in line
    return line


def external(file: Any, secret: Path, name: str) -> None:
    file.create_dataset(name, (COUNT,), f"S{WIDTH}", external=[(str(secret), 0, COUNT * WIDTH)])


def virtual(file: Any, secret: Path, name: str) -> None:
    with h5py.File(secret.with_name("inner.h5"), "w") as inner:
        external(inner, secret, "values")
    layout = h5py.VirtualLayout((COUNT,), dtype=f"S{WIDTH}")
    layout[:] = h5py.VirtualSource(secret.with_name("inner.h5"), "values", shape=(COUNT,))
    file.create_virtual_dataset(name, layout)


def virtual_within(file: Any, secret: Path, name: str) -> None:
    external(file, secret, "hidden")
    layout = h5py.VirtualLayout((COUNT,), dtype=f"S{WIDTH}")
    layout[:] = h5py.VirtualSource(".", "hidden", shape=(COUNT,))
    file.create_virtual_dataset(name, layout)


def outer_file(secret: Path) -> Path:
    with h5py.File(secret.with_name("outer.h5"), "w") as outer:
        outer["folder/values"] = np.full(COUNT, SECRET.encode())
    return secret.with_name("outer.h5")


def external_link(file: Any, secret: Path, name: str) -> None:
    file[name] = h5py.ExternalLink(outer_file(secret), "/folder/values")


def soft_link_that_leaves(file: Any, secret: Path, name: str) -> None:
    file["elsewhere"] = h5py.ExternalLink(outer_file(secret), "/folder")
    file[name] = h5py.SoftLink("/elsewhere/values")


def soft_links_that_leave(file: Any, secret: Path, name: str) -> None:
    file.create_group("a")["elsewhere"] = h5py.ExternalLink(outer_file(secret), "/")
    file["b"] = h5py.SoftLink("a/elsewhere/folder")
    file[name] = h5py.SoftLink("b/values")


def link_to_itself(file: Any, secret: Path, name: str) -> None:
    file[name] = h5py.SoftLink(f"/{name}")


def reference(file: Any, secret: Path, name: str) -> None:
    external(file, secret, "hidden")
    file.create_dataset(name, data=[file["hidden"].ref] * COUNT, dtype=h5py.ref_dtype)


def lists(file: Any, secret: Path, name: str) -> None:
    file.create_dataset(name, (COUNT,), dtype=h5py.vlen_dtype(np.int32))


def huge(file: Any, secret: Path, name: str) -> None:
    file.create_dataset(name, (3_000_000_000,), dtype="u1", chunks=(2**20,))


def huge_chunk(file: Any, secret: Path, name: str) -> None:
    chunk = (COUNT, 2**24)
    file.create_dataset(name, chunk, dtype="u1", chunks=chunk, compression="gzip")


TRICKS = [
    external,
    virtual,
    virtual_within,
    external_link,
    soft_link_that_leaves,
    soft_links_that_leave,
    link_to_itself,
    reference,
    lists,
    huge,
    huge_chunk,
]


@pytest.mark.parametrize("trick", TRICKS)
@pytest.mark.parametrize("name", ["group", "images", "scalars"])
def test_hdf5_that_leads_out_or_is_huge_is_refused_unread(
    frames: Path, secret: Path, trick: Callable[[Any, Path, str], None], name: str
) -> None:
    with h5py.File(frames, "a") as file:
        del file[name]
        trick(file, secret, name)
    # Whoever opened the file that plays the secret has changed the time of its last access.
    os.utime(secret, ns=(0, secret.stat().st_mtime_ns))
    refused(frames)
    assert secret.stat().st_atime_ns == 0


def test_links_within_a_file_are_followed(frames: Path) -> None:
    with h5py.File(frames, "a") as file:
        file.move("group", "kept/flights/number")
        file["kept/short"] = h5py.SoftLink("flights")
        file["group"] = h5py.SoftLink("/kept/short/number")
    assert read_frames(frames).group.tolist() == sequence_columns()["group"].tolist()


@pytest.mark.parametrize("attribute", ["unit", "scalar_names"])
def test_only_known_attributes_are_read(frames: Path, attribute: str) -> None:
    with h5py.File(frames, "a") as file:
        file.attrs["other"] = np.zeros(2**12)
    assert attribute in METADATA
    assert read_frames(frames).unit == METADATA["unit"]


@pytest.mark.parametrize("place", ["group/c/0", "group/zarr.json", "group", "zarr.json"])
def test_a_link_in_a_zarr_store_is_refused(tmp_path: Path, secret: Path, place: str) -> None:
    zarr = pytest.importorskip("zarr", reason="pip install 'clew[zarr]'")
    path = tmp_path / "frames.zarr"
    group = zarr.open_group(str(path), mode="w")
    for name, column in (sequence_columns() | {"group": np.arange(COUNT)}).items():
        group.create_array(name, data=column)
    read_frames(path)
    moved = (path / place).rename(tmp_path / "moved")
    (path / place).symlink_to(secret if place.endswith("0") else moved)
    assert str(path / place) in refused_within(path)


def refused_within(path: Path) -> str:
    with pytest.raises(DataError) as caught:
        read_frames(path)
    return str(caught.value)


@pytest.mark.parametrize("content", ['{"version": 1, "refs": {"images/0": ["/etc/passwd"]}}', ""])
def test_references_to_other_files_are_no_store(tmp_path: Path, content: str) -> None:
    store = tmp_path / "references.zarr"
    store.mkdir()
    (store / ".zmetadata").write_text(content or '{"metadata": {}, "record_size": 10}')
    refused(store)
    (tmp_path / "references.json").write_text(content)
    refused(tmp_path / "references.json")


def test_a_chunk_of_zarr_that_unpacks_to_gigabytes_is_refused(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr", reason="pip install 'clew[zarr]'")
    path = tmp_path / "frames.zarr"
    group = zarr.open_group(str(path), mode="w")
    for name, column in sequence_columns().items():
        if name in {"images", "target"}:
            group.create_array(name, data=column)
    group.create_array("scalars", shape=(COUNT, 2**26), dtype="f8", chunks=(COUNT, 2**26))
    refused(path)


# What the child may do


def ask(**request: Any) -> pa.Table:
    return read_limited(ANSWERS, "the file", **request)


def test_the_child_has_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = {"MLFLOW_TRACKING_PASSWORD", "AWS_SECRET_ACCESS_KEY", "A_NAME_NOBODY_KNOWS"}
    for name in secrets:
        monkeypatch.setenv(name, SECRET)
    known = ask(want="environment")["name"].to_pylist()
    assert "PATH" in known
    assert not secrets & set(known)


@pytest.mark.parametrize(
    "request_",
    [
        {"want": "memory", "mib": 2 * MEMORY_MIB},
        {"want": "death"},
        {"want": "large answer"},
        {"want": "write", "path": "{folder}/written"},
    ],
)
def test_what_the_child_may_not_do_is_one_line(request_: dict[str, Any], tmp_path: Path) -> None:
    given = {k: v.format(folder=tmp_path) if k == "path" else v for k, v in request_.items()}
    with pytest.raises(DataError) as caught:
        ask(**given)
    assert str(caught.value).startswith("the file")
    assert len(str(caught.value).splitlines()) == 1
    assert not any(path.stat().st_size for path in tmp_path.iterdir())


def test_the_child_has_little_time() -> None:
    with LimitedReader(ANSWERS, "the file", seconds=0.2) as reader, pytest.raises(DataError):
        reader.ask(want="time")


def test_memory_below_the_limit_is_given() -> None:
    assert ask(want="memory", mib=MEMORY_MIB // 4).num_rows == 1


def test_this_process_keeps_its_own_limits() -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    ask(want="nothing")
    assert resource.getrlimit(resource.RLIMIT_AS) == before


# Frames and reports, through the child


def test_frames_through_the_child_are_the_same(frames: Path) -> None:
    own = read_frames(frames)
    with handed_in_frames(frames, None) as table:
        assert table.fingerprint == own.fingerprint
        assert table.scalar_names == own.scalar_names
        for name in (*COLUMNS, "recording"):
            np.testing.assert_array_equal(getattr(table, name), getattr(own, name))


def test_frames_without_targets_and_times_are_read_too(tmp_path: Path) -> None:
    images = sequence_columns()["images"]
    path = write_hdf5(tmp_path / "frames.h5", {"images": images}, {})
    with handed_in_frames(path, None) as table:
        assert (table.time, table.present) == (None, None)
        assert table.scalars.shape == (COUNT, 0)
        np.testing.assert_array_equal(table.images.read(np.array([4, 1]))[:, 0], images[[4, 1]])


def test_frames_that_take_more_memory_than_the_child_has_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "frames.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("images", (9_000_000, 1, 1), "u1", chunks=(2**20, 1, 1))
        file.create_dataset("group", (9_000_000,), "i8", chunks=(2**20,))
    assert path.stat().st_size < 10_000

    def open_it(path: Path) -> None:
        with handed_in_frames(path, None):
            pass

    refused(path, open_it)


def influence_table(path: Path, rows: int, text: str) -> Path:
    """Write a table of influence with one text in all its terms."""
    column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, "i4")), pa.array([text]))
    columns: dict[str, Any] = dict.fromkeys(TERM_COLUMNS, column)
    columns |= {SCORE_COLUMN: np.zeros(rows), TEST_INDEX_COLUMN: np.zeros(rows, "i8")}
    pq.write_table(pa.table(columns), path, compression="zstd", row_group_size=rows)
    return path


@pytest.mark.parametrize(("rows", "length"), [(8_000_000, 1), (100_000, 100_000)])
def test_a_small_table_of_gigabytes_is_refused(tmp_path: Path, rows: int, length: int) -> None:
    path = influence_table(tmp_path / "influence.parquet", rows, "x" * length)
    assert path.stat().st_size < 2**20
    with pytest.raises(DataError) as caught:
        admitted(path, "mine.parquet")
    assert str(caught.value).startswith("mine.parquet")


def test_a_table_is_written_again(tmp_path: Path) -> None:
    path = influence_table(tmp_path / "influence.parquet", 7, "name")
    kind, read = admitted(path, "mine.parquet")
    assert (kind, pq.read_table(read).num_rows) == ("parquet", 7)
    assert read != path


@pytest.mark.parametrize("content", ["[" * 200_000, '{"tests": [' + '{"head": "x"},' * 9 + "{}]}"])
def test_json_that_is_no_report_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(DataError) as caught:
        admitted(path, "mine.json")
    assert str(caught.value).startswith("mine.json")


# Files that unpack to far more than their size


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_blocks, "FREE_BYTES", 2**16)


@pytest.mark.usefixtures("little")
def test_triples_that_unpack_to_far_more_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "train.txt.gz"
    path.write_bytes(gzip.compress(b"head\trelation\ttail\n" * 500_000))
    refused(path, lambda path: list(text_blocks.line_blocks(path)))
    path.write_bytes(gzip.compress(b"head\trelation\ttail\n"))
    assert list(text_blocks.line_blocks(path)) == [b"head\trelation\ttail\n"]


@pytest.mark.usefixtures("little")
def test_documents_that_unpack_to_far_more_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt.gz"
    path.write_bytes(gzip.compress(b"the same words\n" * 500_000))
    (unit,) = plan_units(str(path))
    refused(path, lambda _: list(read_unit(unit, "text")))


@pytest.mark.usefixtures("little")
def test_arrays_that_unpack_to_far_more_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "negatives.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("head.npy", bytes(10_000_000))
    refused(path, lambda path: read_given_negatives(path, None, None))  # type: ignore[arg-type]


def test_a_huge_tokenizer_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    with path.open("wb") as file:
        file.truncate(2**30)
    refused(path, FileTokenizer)
