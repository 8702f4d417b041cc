"""Image sequences in Zarr stores: damaged metadata and chunks, arrays of other kinds and sizes."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from tests.attack.cases import attempt, fuzz
from tests.attack.damage import damaged_bytes, damaged_json
from tests.attack.test_frames import NAMES, drawn_array, read
from tests.image_sequences.sequence_files import METADATA, sequence_columns

zarr = pytest.importorskip("zarr", reason="pip install 'clew[zarr]'")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:The data type .* does not have a Zarr V3"),
]
SIZES = (0, 1, 48, 49, 2**31, 2**40, 2**62, -1)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_zarr_stores(zarr_format: int, place: Path) -> None:
    whole, path = place / f"whole-{zarr_format}.zarr", place / "frames.zarr"
    group = zarr.open_group(str(whole), mode="w", zarr_format=zarr_format)
    for name, column in sequence_columns().items():
        group.create_array(name, data=column, chunks=(24, *column.shape[1:]))
    group.attrs.update(METADATA)
    names = sorted(str(file.relative_to(whole)) for file in whole.rglob("*") if file.is_file())
    metadata = [name for name in names if name.endswith(("zarr.json", ".zarray", ".zattrs"))]

    def other_sizes(draw: DrawFn, content: dict[str, Any]) -> dict[str, Any]:
        """Return metadata of an array of another size, none of whose new chunks is there."""
        shape = content.get("shape") or [1]
        content["shape"] = [draw(st.sampled_from(SIZES)), *shape[1:]]
        return content

    def case(draw: DrawFn) -> None:
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(whole, path)
        kind = draw(st.sampled_from(["metadata", "bytes", "sizes", "array"]))
        if kind == "array":
            name, array = draw(st.sampled_from(NAMES)), drawn_array(draw)
            shutil.rmtree(path / name)
            if array.dtype.kind in "fiubS":
                zarr.open_group(str(path), mode="a").create_array(name, data=array)
        elif kind == "bytes":
            file = path / draw(st.sampled_from(names))
            file.write_bytes(draw(damaged_bytes(file.read_bytes(), most=2)))
        else:
            file = path / draw(st.sampled_from(metadata))
            content = json.loads(file.read_bytes())
            if kind == "sizes":
                for name in ("images", "target") if draw(st.booleans()) else ("target",):
                    array_file = path / name / file.name
                    if array_file.is_file():
                        described = json.loads(array_file.read_bytes())
                        array_file.write_text(json.dumps(other_sizes(draw, described)))
            else:
                file.write_bytes(draw(damaged_json(content)))
        attempt(lambda: read(path))

    fuzz(0.005, case)


def test_metadata_within_metadata(place: Path) -> None:
    path = place / "deep.zarr"
    group = zarr.open_group(str(path), mode="w")
    group.create_array("images", data=np.zeros((3, 2, 2)))
    group.create_array("target", data=np.zeros(3))
    file = path / "target/zarr.json"
    for depth in (100, 600, 900):
        content = json.loads(file.read_bytes())
        text = json.dumps(content | {"codecs": "here"}).replace('"here"', "[" * depth + "]" * depth)
        file.write_text(text)
        assert attempt(lambda: read(path)) is not None
        file.write_text(json.dumps(content))
