"""Reads graph models that PyKEEN or LibKGE trained, as parameters of Clew's models.

No code of a file runs: torch reads tensors and plain values only, and LibKGE's configuration as the
attributes of an empty object. A model without inverse relations gets rows with which an inverse
triple has the score of the triple itself.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from safetensors.torch import load_file
from torch import Tensor

from clew.errors import ConfigError, DataError, described, quoted, refusing
from clew.link_prediction.descriptions import read_dictionary
from clew.link_prediction.other_formats import read_torch
from clew.link_prediction.vocabulary import Kind, Vocabulary

PYKEEN, LIBKGE = "{}_representations.0._embeddings.weight", "_{}_embedder._embeddings.weight"
LIBRARIES = {PYKEEN: "PyKEEN", LIBKGE: "LibKGE"}
"""Names of the tables in a state dict, to the library."""
LAYERS = {
    "interaction.hr2d.0": "input_norm",
    "interaction.hr2d.2": "convolution",
    "interaction.hr2d.3": "feature_norm",
    "interaction.hr1d.0": "projection",
    "interaction.hr1d.2": "projection_norm",
    "_scorer.convolution": "convolution",
    "_scorer.bn1": "feature_norm",
    "_scorer.projection": "projection",
    "_scorer.bn2": "projection_norm",
}
"""Layers of ConvE in both libraries, to their names here."""
INVERSE: dict[str, Callable[[Tensor], Tensor]] = {
    "distmult": lambda rows: rows,
    "complex": lambda rows: torch.cat([rows.chunk(2, 1)[0], -rows.chunk(2, 1)[1]], 1),
    "rotate": lambda rows: -rows,
    "transe": lambda rows: -rows,
}
"""Models without layers, to the rows of their inverse relations."""
NORM_EPSILON = 1e-5
SAVE_ALONE = "save the parameters alone: torch.save(model.state_dict(), 'weights.pt')"
MAX_MODULUS_ERROR = 1e-3


@dataclass(frozen=True)
class OtherModel:
    """An earlier model: its parameters under the names that they have in Clew, and its names."""

    source: str
    settings: dict[str, Any]
    """Settings of the section `model`, by their full names."""
    parameters: dict[str, Tensor]
    entities: Vocabulary
    relations: Vocabulary


class _Attributes:
    """Stands for LibKGE's configuration."""


def read_other_model(
    path: Path, folder: Path, given: Mapping[str, Any], norm: float | None = None
) -> OtherModel:
    """Read a state dict of PyKEEN or LibKGE, or a checkpoint or package of LibKGE.

    Args:
        path: The file (`.safetensors`, or written by `torch.save`).
        folder: The folder with the dictionaries, unless a package contains the names.
        given: What the file does not say, such as `model.kind`.
        norm: Norm of the distances of TransE or RotatE, if the file does not say it.
    """
    content = _content(path)
    what = f"{path}: its parts are not those of a model of PyKEEN or LibKGE"
    kinds = AttributeError, LookupError, RuntimeError, TypeError, ValueError
    with refusing(what, *kinds, advice=f"; {SAVE_ALONE}"):
        return _understood(path, content, folder, given, norm)


def _understood(
    path: Path, content: dict[str, Any], folder: Path, given: Mapping[str, Any], norm: float | None
) -> OtherModel:
    options = getattr(content.get("config"), "options", {})
    state = content["model"][0] if options else content.get("model_state_dict", content)
    state = {key.removeprefix("_base_model."): value for key, value in state.items()}
    table = next((name for name in LIBRARIES if name.format("relation") in state), "")
    if table.format("entity") not in state:
        raise DataError(f"{path}: {quoted(', '.join(state))} is not a model of PyKEEN or LibKGE")
    kind = _kind(path, state, options, given)
    packaged = content.get("dataset", {}).get("meta", {})
    entities = _names(packaged, folder, "entity")
    relations = _names(packaged, folder, "relation")
    tables = {f"{name}.weight": state[table.format(name)] for name in ("entity", "relation")}
    entity, relation = tables.values()
    if len(entity) != len(entities) or len(relation) not in (len(relations), 2 * len(relations)):
        raise DataError(
            f"{path}: {len(entity):,} and {len(relation):,} rows, but the dictionaries name "
            f"{len(entities):,} entities and {len(relations):,} relations; give those of this "
            "model: --names FOLDER"
        )
    if table == PYKEEN:  # an inverse follows its relation; real and imaginary parts alternate
        if len(relation) > len(relations):
            tables["relation.weight"] = torch.cat([relation[0::2], relation[1::2]])
        if kind in ("complex", "rotate"):
            halves = {k: torch.cat([t[:, 0::2], t[:, 1::2]], 1) for k, t in tables.items()}
            tables = halves if kind == "complex" else _with_angles(path, halves)
    if kind in ("rotate", "transe"):
        by_file = options.get(kind, {}).get("l_norm", norm)
        if by_file != 2 and (kind, table) != ("rotate", PYKEEN):
            raise ConfigError(
                f"{path}: the norm of its distances is {by_file or 'not in the file'}; only "
                "Euclidean ones are imported (PyKEEN's scoring_fct_norm=2): if they are, give "
                "--norm 2"
            )
    settings = {"kind": kind, "entity_bias": False}
    if kind == "conve":
        if len(relation) == len(relations):
            raise ConfigError(f"{path}: ConvE without inverse relations is not imported")
        tables, settings = _conve(path, state, tables, given.get("model.embedding_height"))
    elif len(relation) == len(relations):
        own = tables["relation.weight"]
        tables["relation.weight"] = torch.cat([own, INVERSE[kind](own)])
    settings["embedding_dim"] = tables["entity.weight"].shape[1]
    full = {f"model.{key}": value for key, value in settings.items()}
    return OtherModel(f"{LIBRARIES[table]}'s {path}", full, tables, entities, relations)


def _content(path: Path) -> dict[str, Any]:
    try:
        if path.suffix == ".safetensors":
            return dict(load_file(path))
        return dict(read_torch(path, {"kge.config.Config": _Attributes}))
    except DataError:
        raise
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({described(error)})") from None
    except Exception:  # torch raises many types of error for a file that it does not read
        raise DataError(
            f"{path}: holds no parameters, or objects whose reading could run code; {SAVE_ALONE}"
        ) from None


def _kind(
    path: Path, state: Mapping[str, Tensor], options: Mapping[str, Any], given: Mapping[str, Any]
) -> str:
    """Return the kind of model that the layers, LibKGE's options or the user name."""
    if any(key.startswith(tuple(LAYERS)) for key in state):
        return "conve"
    named = options.get("model", given.get("model.kind"))
    if named == "reciprocal_relations_model":
        named = options[named]["base_model"]["type"]
    if named not in INVERSE:
        raise ConfigError(
            f"{path}: model.kind is {named!r}; give the kind of this model, model.kind=complex, "
            "distmult, rotate or transe (conve is known by its layers); no others are read"
        )
    return str(named)


def _names(packaged: Mapping[str, Any], folder: Path, kind: Kind) -> Vocabulary:
    if f"{kind}_ids" in packaged:
        return Vocabulary(kind, pa.array(packaged[f"{kind}_ids"], pa.string()))
    for form in (f"{kind}_to_id*", f"training_triples/{kind}_to_id*", f"{kind}_ids.del"):
        for found in sorted(folder.glob(form)):
            return read_dictionary(found, kind)
    raise DataError(
        f"{folder}: no {kind}_to_id.tsv.gz (in PyKEEN's folder training_triples) and no "
        f"{kind}_ids.del (LibKGE's); give the folder of the dictionaries: --names FOLDER"
    )


def _with_angles(path: Path, tables: dict[str, Tensor]) -> dict[str, Tensor]:
    real, imaginary = tables["relation.weight"].chunk(2, 1)
    if (torch.hypot(real, imaginary) - 1).abs().max() > MAX_MODULUS_ERROR:
        raise ConfigError(f"{path}: not RotatE, whose relations are rotations; give its model.kind")
    return tables | {"relation.weight": torch.atan2(imaginary, real)}


def _conve(
    path: Path, state: Mapping[str, Tensor], tables: dict[str, Tensor], height: Any
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the parameters and settings of ConvE; LibKGE keeps the bias in the first column."""
    found = {
        key.replace(theirs, ours): value
        for theirs, ours in LAYERS.items()
        for key, value in state.items()
        if key.startswith(f"{theirs}.")
    }
    bias = state.get(PYKEEN.replace(".0.", ".1.").format("entity"))
    if bias is None and "projection_norm.weight" not in found:
        bias = tables["entity.weight"][:, :1]
        tables = {key: rows[:, 1:] for key, rows in tables.items()}
        identity = torch.tensor([0.0]), torch.tensor([1.0 - NORM_EPSILON]), torch.tensor(0)
        names = ("running_mean", "running_var", "num_batches_tracked")
        found |= {f"input_norm.{k}": v for k, v in zip(names, identity, strict=True)}
        for norm in [key for key in found if key.endswith("running_mean")]:
            ones = torch.ones_like(found[norm])
            found[norm.replace("running_mean", "weight")] = ones
            found[norm.replace("running_mean", "bias")] = 0 * ones
    kernel, projection = found.get("convolution.weight"), found.get("projection.weight")
    if bias is None or kernel is None or projection is None or kernel.dim() != 4:
        raise ConfigError(f"{path}: ConvE without bias or batch normalization is not imported")
    (channels, _, rows, columns), dim = kernel.shape, len(projection)
    sizes = {h: (2 * h - rows + 1) * (dim // h - columns + 1) for h in range(1, dim + 1)}
    fit = [h for h, n in sizes.items() if dim % h == 0 and channels * n == projection.shape[1]]
    height = int(height or (fit[0] if len(fit) == 1 else 0))
    if height not in fit:
        raise ConfigError(
            f"{path}: an image of {dim} numbers can have {fit or 'no'} rows here (padding and "
            "strides are not imported); give model.embedding_height"
        )
    settings = {
        "kind": "conve",
        "entity_bias": True,
        "embedding_height": height,
        "embedding_width": dim // height,
        "output_channels": channels,
        "kernel_height": rows,
        "kernel_width": columns,
        "convolution_bias": "convolution.bias" in found,
        "projection_bias": "projection.bias" in found,
    }
    return tables | found | {"entity_bias": bias.flatten()}, settings
