"""Models of PyKEEN and LibKGE: equal scores, names by dictionary, and no code of a file runs."""

import math
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from pykeen.models import ComplEx, ConvE, DistMult, RotatE, TransE
from pykeen.triples import TriplesFactory
from torch import Tensor

from clew.config.load import from_mapping
from clew.errors import ConfigError, DataError
from clew.link_prediction.models.base import GraphModel, build_graph_model
from clew.link_prediction.other_formats import read_torch
from clew.link_prediction.other_models import OtherModel, read_other_model

FACTS = np.array([["b", "likes", "a"], ["a", "knows", "c"], ["c", "likes", "b"], ["d", "is", "a"]])
ENTITIES, RELATIONS = ["a", "b", "c", "d"], ["is", "knows", "likes"]
QUERIES = torch.tensor([[0, 0], [1, 2], [3, 1]])
KINDS = {
    "distmult": (DistMult, {"embedding_dim": 4}),
    "complex": (ComplEx, {"embedding_dim": 3}),
    "rotate": (RotatE, {"embedding_dim": 3}),
    "transe": (TransE, {"embedding_dim": 4, "scoring_fct_norm": 2}),
    "conve": (ConvE, {"embedding_dim": 12, "embedding_height": 3, "embedding_width": 4,
                      "output_channels": 2, "kernel_height": 2, "kernel_width": 2}),
}  # fmt: skip


def built(other: OtherModel) -> GraphModel:
    config = from_mapping({"data": {"name": "umls"}}, other.settings).model
    model = build_graph_model(config, len(other.entities), 2 * len(other.relations))
    model.load_state_dict(other.parameters)
    return model.eval()


@torch.no_grad()
def both_sides(other: OtherModel) -> tuple[Tensor, Tensor]:
    """Scores of all tails of the queries (head, relation), and of all heads of (tail, relation)."""
    model, (given, relation) = built(other), QUERIES.T
    inverse = relation + len(other.relations)
    return model.scores(model.queries(given, relation)), model.scores(model.queries(given, inverse))


def same(ours: Tensor, theirs: Tensor, *, is_distance: bool) -> None:
    """Distances are squared here."""
    torch.testing.assert_close(ours, -theirs.square() if is_distance else theirs)


@pytest.mark.parametrize("kind", KINDS)
def test_scores_equal_those_of_pykeen(kind, tmp_path):
    has_inverses = kind in ("conve", "distmult")
    factory = TriplesFactory.from_labeled_triples(FACTS, create_inverse_triples=has_inverses)
    kind_of_model, settings = KINDS[kind]
    model = kind_of_model(triples_factory=factory, random_seed=0, **settings).eval()
    for name, buffer in model.named_buffers():
        if "running" in name:
            buffer.uniform_(0.5, 2.0)
    factory.to_path_binary(tmp_path / "training_triples")
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    given = {"model.kind": kind, "model.embedding_height": 3} if kind == "conve" else {
        "model.kind": kind
    }  # fmt: skip
    norm = 2 if kind == "transe" else None
    other = read_other_model(tmp_path / "weights.pt", tmp_path, given, norm)
    assert list(other.entities) == ENTITIES
    tails, heads = both_sides(other)
    is_distance = kind in ("rotate", "transe")
    with torch.no_grad():
        same(tails, model.predict_t(QUERIES), is_distance=is_distance)
        same(heads, model.predict_h(QUERIES.flip(1)), is_distance=is_distance)


def libkge_score(kind: str, state: dict[str, Tensor], relation: int, head: int, tail: int) -> float:
    h, t = (state["_entity_embedder._embeddings.weight"][i].tolist() for i in (head, tail))
    r = state["_relation_embedder._embeddings.weight"][relation].tolist()
    half = len(h) // 2
    if kind == "distmult":
        return sum(a * b * c for a, b, c in zip(h, r, t, strict=True))
    if kind == "transe":
        return -math.dist([a + b for a, b in zip(h, r, strict=True)], t)
    x, y = ([complex(*pair) for pair in zip(v[:half], v[half:], strict=True)] for v in (h, t))
    if kind == "rotate":
        turned = [a * complex(math.cos(b), math.sin(b)) for a, b in zip(x, r, strict=True)]
        return -math.sqrt(sum(abs(a - b) ** 2 for a, b in zip(turned, y, strict=True)))
    z = [complex(*pair) for pair in zip(r[:half], r[half:], strict=True)]
    return sum((a * b * c.conjugate()).real for a, b, c in zip(x, z, y, strict=True))


def packaged(
    path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, norm: float, **other: object
) -> dict[str, Tensor]:
    """Write a package as LibKGE does, with its object of the configuration."""
    module = ModuleType("kge.config")
    module.Config = type("Config", (), {"__module__": "kge.config"})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "kge", ModuleType("kge"))
    monkeypatch.setitem(sys.modules, "kge.config", module)
    config = module.Config()
    config.options = other.pop("options", {"model": kind, kind: {"l_norm": norm}})
    torch.manual_seed(0)
    state = {
        "_entity_embedder._embeddings.weight": torch.randn(4, 6),
        "_relation_embedder._embeddings.weight": torch.randn(3, 3 if kind == "rotate" else 6),
    }
    names = {"entity_ids": ENTITIES, "relation_ids": RELATIONS}
    content = {"config": config, "model": (state, {}), "dataset": {"meta": names}}
    torch.save(content | other, path)
    return state


@pytest.mark.parametrize("kind", ["distmult", "complex", "rotate", "transe"])
def test_scores_equal_those_of_libkge(kind, tmp_path, monkeypatch):
    state = packaged(tmp_path / "model.pt", monkeypatch, kind, 2.0)
    other = read_other_model(tmp_path / "model.pt", tmp_path, {})
    assert other.settings["model.kind"] == kind
    for sign, ours in zip((1, -1), both_sides(other), strict=True):
        theirs = [
            [libkge_score(kind, state, r, *(given, other)[::sign]) for other in range(4)]
            for given, r in QUERIES.tolist()
        ]
        same(ours, torch.tensor(theirs), is_distance=kind in ("rotate", "transe"))


def test_conve_of_libkge_has_its_bias_in_the_first_column(tmp_path):
    torch.manual_seed(0)
    norm = {"running_mean": torch.randn(32), "running_var": torch.rand(32) + 0.5}
    last = {"running_mean": torch.randn(12), "running_var": torch.rand(12) + 0.5}
    count = {"num_batches_tracked": torch.tensor(3)}
    kernel, kernel_bias = torch.randn(32, 1, 2, 2), torch.randn(32)
    weight, bias = torch.randn(12, 32 * 15), torch.randn(12)
    entity, relation = torch.randn(4, 13), torch.randn(6, 13)
    layers = {
        "convolution.weight": kernel, "convolution.bias": kernel_bias,
        **{f"bn1.{key}": value for key, value in (norm | count).items()},
        "projection.weight": weight, "projection.bias": bias,
        **{f"bn2.{key}": value for key, value in (last | count).items()},
    }  # fmt: skip
    state = {f"_base_model._scorer.{key}": value for key, value in layers.items()}
    state["_base_model._entity_embedder._embeddings.weight"] = entity
    state["_base_model._relation_embedder._embeddings.weight"] = relation
    torch.save(state, tmp_path / "state.pt")
    for name, known in (("entity", ENTITIES), ("relation", RELATIONS)):
        lines = "".join(f"{i}\t{text}\n" for i, text in enumerate(known))
        (tmp_path / f"{name}_ids.del").write_text(lines)
    other = read_other_model(tmp_path / "state.pt", tmp_path, {"model.embedding_height": 3})
    for ours, offset in zip(both_sides(other), (0, 3), strict=True):
        given, asked = QUERIES[:, 0], QUERIES[:, 1] + offset
        image = torch.cat([entity[given, 1:], relation[asked, 1:]], 1).view(-1, 1, 6, 4)
        maps = torch.nn.functional.conv2d(image, kernel, kernel_bias)
        maps = (maps - norm["running_mean"][:, None, None]) / (
            norm["running_var"][:, None, None] + 1e-5
        ).sqrt()
        hidden = maps.relu().flatten(1) @ weight.T + bias
        hidden = (hidden - last["running_mean"]) / (last["running_var"] + 1e-5).sqrt()
        expected = hidden.relu() @ entity[:, 1:].T + entity[:, 0]
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)


class Harmful:
    """An object whose reading makes a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.mkdir, (self.folder,)


def test_no_code_of_a_file_runs(tmp_path):
    state = {"entity_representations.0._embeddings.weight": Harmful(tmp_path / "made")}
    torch.save(state, tmp_path / "weights.pt")
    with pytest.raises(DataError):
        read_other_model(tmp_path / "weights.pt", tmp_path, {})
    assert not (tmp_path / "made").exists()


def deflated(path: Path, state: object) -> None:
    """Write what `torch.save` would, with its parts compressed."""
    torch.save(state, path.with_name("plain.pt"))
    with (
        zipfile.ZipFile(path.with_name("plain.pt")) as plain,
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for name in plain.namelist():
            archive.writestr(name, plain.read(name))


def expanded(path: Path, state: dict[str, Tensor]) -> None:
    one = torch.zeros(1)
    torch.save({name: one.expand(table.shape) for name, table in state.items()}, path)


def on_meta(path: Path, state: dict[str, Tensor]) -> None:
    torch.save({name: table.to("meta") for name, table in state.items()}, path)


@pytest.mark.parametrize("write", [deflated, expanded, on_meta])
def test_a_small_file_of_huge_tables_is_refused(write, tmp_path):
    names, rows = ("entity", "relation"), torch.zeros(4, 2_500_000)
    state = {f"{name}_representations.0._embeddings.weight": rows for name in names}
    write(tmp_path / "weights.pt", state)
    for name in names:
        lines = "".join(f"{i}\t{i}\n" for i in range(4))
        (tmp_path / f"{name}_ids.del").write_text(lines)
    with pytest.raises(DataError):
        read_other_model(tmp_path / "weights.pt", tmp_path, {"model.kind": "distmult"})


def test_one_long_name_that_is_used_many_times_is_refused(tmp_path):
    torch.save({"entity_ids": ["long" * 10_000] * 1_000}, tmp_path / "model.pt")
    with pytest.raises(DataError):
        read_torch(tmp_path / "model.pt", {})


def test_other_norms_and_other_dictionaries_are_refused(tmp_path, monkeypatch):
    state = packaged(tmp_path / "model.pt", monkeypatch, "rotate", 1.0)
    with pytest.raises(ConfigError):
        read_other_model(tmp_path / "model.pt", tmp_path, {})
    torch.save(state, tmp_path / "state.pt")
    with pytest.raises(DataError):  # no dictionary
        read_other_model(tmp_path / "state.pt", tmp_path, {"model.kind": "distmult"})
    for name in ("entity", "relation"):
        (tmp_path / f"{name}_ids.del").write_text("0\ta\n1\tb\n")
    with pytest.raises(DataError):  # of another size
        read_other_model(tmp_path / "state.pt", tmp_path, {"model.kind": "distmult"})


def test_a_model_that_does_not_rotate_is_not_rotate(tmp_path):
    factory = TriplesFactory.from_labeled_triples(FACTS)
    model = ComplEx(triples_factory=factory, random_seed=0, embedding_dim=3)
    factory.to_path_binary(tmp_path)
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    with pytest.raises(ConfigError):
        read_other_model(tmp_path / "weights.pt", tmp_path, {"model.kind": "rotate"})
    with pytest.raises(ConfigError):  # no kind
        read_other_model(tmp_path / "weights.pt", tmp_path, {})


ROWS = torch.zeros(4, 6)
STATE = {"_entity_embedder._embeddings.weight": ROWS, "_relation_embedder._embeddings.weight": ROWS}


@pytest.mark.parametrize(
    "wrong",
    [
        {"model": None},
        {"model": []},
        {"model": [None, {}]},
        {"model": [{**STATE, 7: ROWS}, {}]},
        {"model": [{**STATE, "_entity_embedder._embeddings.weight": "text"}, {}]},
        {"model": [dict.fromkeys(STATE, torch.zeros(4)), {}]},
        {"dataset": []},
        {"dataset": {"meta": {"entity_ids": [1, None], "relation_ids": RELATIONS}}},
        {"options": "text"},
        {"options": {"model": "reciprocal_relations_model"}},
        {"options": {"model": ["distmult"]}},
        {"options": {"model": "transe", "transe": 2}},
    ],
)
def test_a_package_of_another_structure_is_refused(wrong, tmp_path, monkeypatch):
    packaged(tmp_path / "model.pt", monkeypatch, "distmult", 2.0, **wrong)
    with pytest.raises((ConfigError, DataError), match=r"model\.pt"):
        read_other_model(tmp_path / "model.pt", tmp_path, {})
