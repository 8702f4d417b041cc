"""Damaged files that killed commands left for their continuation, such as results and indexes."""

import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from safetensors.torch import save_file

from clew.config.data import PackSettings, TokenData
from clew.influence.adjoints import Adjoint
from clew.influence.outcomes import Outcomes
from clew.influence.retraining import IDENTITY_FILE, KeptRetrainings, Retraining
from clew.influence.unrolling import KeptInFile, Unfinished
from clew.influence.window_index import (
    DIRECTIONS_FILE,
    FOLDER,
    INDEX_FILE,
    SCALES,
    SQUARED_NORMS,
    WINDOWS_FILE,
    IndexManifest,
    IndexOf,
    find_index,
    write_manifest,
)
from clew.language_modeling.documents import plan_units
from clew.language_modeling.pretokenize import tokenize_unit
from clew.language_modeling.tokens import load_tokens
from clew.runs.influence_report import read_influence_json
from clew.training.progress import last_step
from clew.workflows.explaining.result_files import (
    NOTE_FILE,
    SUMMARY_FILE,
    OutputFolder,
)
from tests.attack.cases import attempt, fuzz
from tests.attack.damage import damaged_bytes, damaged_json
from tests.attack.material import Material
from tests.attack.test_reports import damaged_parquet

pytestmark = pytest.mark.slow


def damaged_file(draw: DrawFn, path: Path) -> bytes:
    """Return a file's content with damage that fits its kind."""
    content = path.read_bytes()
    if path.suffix == ".parquet":
        return damaged_parquet(draw, content)
    if path.suffix == ".json" and draw(st.booleans()):
        return draw(damaged_json(json.loads(content)))
    return draw(damaged_bytes(content))


def test_results_of_a_batch(material: Material, place: Path) -> None:
    report = read_influence_json(material.report / "influence.json")
    settings = {"model": "0" * 32, "test_triples_sha256": "0" * 16, "influence": {"top_k": 5}}
    whole, root = place / "whole batch", place / "batch"
    OutputFolder(whole).prepare(settings)
    for number in range(2):
        folder = whole / "tests" / f"{number:06d}"
        shutil.copytree(material.report, folder)
        content = json.loads((folder / "influence.json").read_bytes())
        content["tests"] = content["tests"][:1]
        (folder / "influence.json").write_text(json.dumps(content))
        note = {"index": number, "text": f"line {number}", "status": "done"}
        (folder / NOTE_FILE).write_text(json.dumps(note))
    failed = {"index": 7, "text": "x", "status": "failed", "message": "no candidates"}
    (whole / SUMMARY_FILE).write_text(json.dumps({"failed": 1, "tests": [failed]}))
    names = sorted(str(path.relative_to(whole)) for path in whole.rglob("*") if path.is_file())

    def go_on() -> None:
        output = OutputFolder(root)
        output.prepare(settings)
        kept = [output.kept(number, f"line {number}") for number in range(2)]
        output.summarise([outcome for outcome in kept if outcome])
        output.join(report)

    def case(draw: DrawFn) -> None:
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(whole, root)
        path = root / draw(st.sampled_from(names))
        if draw(st.integers(0, 4)) == 0:
            path.unlink()
        else:
            path.write_bytes(damaged_file(draw, path))
        attempt(go_on)

    fuzz(0.004, case)


def test_retrainings(place: Path) -> None:
    folder, retraining = place / "retrainings", Retraining(0, np.array([1, 2]))
    outcomes = Outcomes(*np.zeros((3, 2, 1)))
    other = io.BytesIO()
    np.savez(other, loss=np.array([{}], object))

    def go_on() -> None:
        kept = KeptRetrainings(folder, "of this")
        if retraining in kept:
            kept.read(retraining)

    def case(draw: DrawFn) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        KeptRetrainings(folder, "of this").write(retraining, outcomes)
        written = folder / f"{retraining.key}.npz"
        content = draw(st.sampled_from([written.read_bytes(), other.getvalue()]))
        written.write_bytes(draw(damaged_bytes(content, most=2)))
        if draw(st.booleans()):
            path = folder / IDENTITY_FILE
            path.write_bytes(draw(damaged_bytes(path.read_bytes())))
        attempt(go_on)

    fuzz(0.01, case)


def test_indexes_of_windows(place: Path) -> None:
    checkpoint = place / "epoch-0001"
    folder = checkpoint / FOLDER
    folder.mkdir(parents=True)
    of = IndexOf("0" * 64, "0" * 16, "0" * 12, num_windows=4, rank=2)
    np.save(folder / WINDOWS_FILE, np.zeros((4, 6), np.float16))
    tensors = {SCALES: torch.ones(4), SQUARED_NORMS: torch.ones(4, 1)}
    save_file(tensors, folder / DIRECTIONS_FILE)
    write_manifest(folder, IndexManifest(of, {"weight": 6}, {}, 0.1, 3, 1.0))
    whole = {path.name: path.read_bytes() for path in folder.iterdir()}

    def case(draw: DrawFn) -> None:
        for name, content in whole.items():
            (folder / name).write_bytes(content)
        path = folder / draw(st.sampled_from(sorted(whole)))
        if path.name == INDEX_FILE and draw(st.booleans()):
            said = json.loads(whole[INDEX_FILE])
            digests = draw(st.sampled_from([{}, {"/dev/zero": "0"}, {"../../x": "0"}, {"\0": ""}]))
            path.write_text(json.dumps(said | {"sha256": digests}))
        else:
            path.write_bytes(damaged_file(draw, path))
        attempt(lambda: find_index(checkpoint, of))

    fuzz(0.01, case)


def test_unfinished_passes(place: Path) -> None:
    path = place / "pass.safetensors"
    kept = KeptInFile(path, torch.device("cpu"))
    tensors = {"weight": torch.ones(2, 3)}
    kept.write(Unfinished(2, [Adjoint(tensors, {}, {}, {})], torch.zeros(3, 1, 4)))
    whole = path.read_bytes()
    head = 8 + int.from_bytes(whole[:8], "little")

    def case(draw: DrawFn) -> None:
        cut = draw(st.sampled_from([head, len(whole)]))
        path.write_bytes(draw(damaged_bytes(whole[:cut])) + whole[cut:])
        attempt(kept.read)

    fuzz(0.01, case)


def test_parts_of_a_pack(place: Path) -> None:
    corpus, output = place / "corpus.txt", place / "packing"
    corpus.write_text("green bottles on a wall\n" * 40, encoding="utf-8")
    output.mkdir()
    settings = PackSettings(dataset=str(corpus), chunk_size=16)
    (unit,) = plan_units(str(corpus))
    part = output / "0.tokens"
    tokenize_unit(unit, part, settings=settings, output=output)
    counts = part.with_suffix(".json")
    whole = counts.read_bytes()
    plan = place / "packed again/plan.json"
    load_tokens(TokenData(dataset=str(corpus), packed=str(plan.parent)), window=16)
    plans = [path for path in plan.parent.iterdir() if path.suffix == ".json"]

    def case(draw: DrawFn) -> None:
        counts.write_bytes(draw(st.one_of(damaged_json(json.loads(whole)), damaged_bytes(whole))))
        attempt(lambda: tokenize_unit(unit, part, settings=settings, output=output))
        path = draw(st.sampled_from(plans))
        before = path.read_bytes()
        path.write_bytes(draw(damaged_bytes(before)))
        config = TokenData(dataset=str(corpus), packed=str(plan.parent))
        attempt(lambda: load_tokens(config, window=16))
        path.write_bytes(before)

    fuzz(0.004, case)


def test_histories(place: Path) -> None:
    written = io.BytesIO()
    columns: dict[str, Any] = {"key": ["a", "b"], "value": [0.5, 0.25], "step": [1, 2]}
    pq.write_table(pa.table(columns), written)
    path = place / "history.parquet"

    def case(draw: DrawFn) -> None:
        path.write_bytes(damaged_parquet(draw, written.getvalue()))
        attempt(lambda: last_step(path))

    fuzz(0.004, case)
