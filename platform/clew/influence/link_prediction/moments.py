"""Means and second moments of the factors of training rows, at one checkpoint.

They are estimated from a fixed number of rows, spread evenly over the training triples (both
directions), or from all rows if there are fewer. The largest tensor in memory holds the features of
the queries of these rows.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import scipy.linalg
import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from clew.errors import described
from clew.files import replacing
from clew.influence.link_prediction.geometry import Geometry, Metric
from clew.influence.link_prediction.rows import ROW_CHUNK, DeltaRows, distinct_queries
from clew.influence.link_prediction.trunk import EVERY, Queries, Scorer, Trunk
from clew.link_prediction.losses.one_vs_all import LossFunction
from clew.training.distributed import code_digest
from clew.training.manifest import save_tensors, sha256_of_content
from clew.training.precision import device_name

logger = logging.getLogger(__name__)

GRADIENTS = ("projected", "head", "relation")
SCORES_AT_ONCE = 2**22
"""Number of scores, and of drawn labels, that are held at once."""
FEATURES_AT_ONCE = 2**25
"""Number of features that are held at once; it can reduce the number of rows."""
NUM_BLOCKS = 8
"""Number of blocks of rows in which a symmetric product is computed."""
LONGEST_FACTOR = 2048
"""Longest factor whose second moment is a matrix. For a longer factor, it is the mean of the
diagonal; for example, for relations in a model that has a matrix for each relation."""

LARGEST_FOLDER_BYTES = 2**30
"""Largest size of the folder of geometries; the least recently used files are removed first."""
SCALE, VECTORS, WEIGHTS = "scale", "vectors", "weights"
UNREADABLE = (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError)


@dataclass(frozen=True)
class MomentSettings:
    """How moments are estimated; recorded with every score that uses them."""

    rows: int = 2048
    """Largest number of training rows."""
    seed: int = 0
    """Seed of the labels that are drawn from the model."""
    damping: float = 0.1
    """Added to each second moment, as a share of its mean eigenvalue."""
    rank: int = 32
    """Number of eigenvectors of the features' second moment."""

    def as_dict(self) -> dict[str, float | int]:
        return asdict(self)


def deflated(trunk: Trunk, rows: DeltaRows, settings: MomentSettings) -> Geometry:
    """Return the geometry of `deflated`: without the mean directions of h and f."""
    queries, query = _sampled(trunk, rows, settings.rows)
    share = torch.bincount(query).to(queries.hidden) / len(query)
    features = None
    if trunk.layout.dense is not None:
        features = Metric.without(share @ trunk.features(queries.activations, EVERY))
    return Geometry(Metric.without(share @ queries.hidden), features)


def kronecker(
    trunk: Trunk, scorer: Scorer, rows: DeltaRows, function: LossFunction, settings: MomentSettings
) -> Geometry:
    """Return the geometry of `kronecker`: every factor whitened."""
    queries, query = _sampled(trunk, rows, settings.rows)
    num_entities, num_rows = trunk.model.entity.num_embeddings, len(query)
    moments: dict[str, Tensor] = {}
    variance = torch.zeros(num_entities, dtype=torch.float64, device=query.device)
    generator = torch.Generator().manual_seed(settings.seed)
    at_once = max(1, min(ROW_CHUNK, SCORES_AT_ONCE // num_entities))
    for index in torch.split(query, at_once):
        hidden = queries.hidden[index]
        delta, of_entity = drawn_delta(scorer.scores(hidden), function, generator)
        variance += of_entity.double().sum(0)
        pulled = scorer.pull(delta, hidden)
        gradients = trunk.backward(queries, index, pulled, deep=True, small=False)
        for name in GRADIENTS:
            if (values := getattr(gradients, name)) is not None:
                moments[name] = moments.get(name, 0.0) + _second_moment(values)
    weight = (torch.bincount(query).to(queries.hidden) / num_rows).sqrt()[:, None]
    features = None
    if trunk.layout.dense is not None:
        values = trunk.features(queries.activations, EVERY).mul(weight)
        features = inverse(*leading_eigenvectors(values, settings.rank), settings.damping)
    dtype = queries.hidden.dtype
    roots = {
        name: whitening(moment / num_rows, settings.damping).to(dtype)
        for name, moment in moments.items()
    }
    of_queries = whitening(_second_moment(queries.hidden * weight), settings.damping)
    relations = _share(rows.relation, trunk.model.relation.num_embeddings)
    return Geometry(
        hidden=of_queries.to(dtype),
        features=features,
        projected=roots.get("projected"),
        head=roots["head"],
        relation=roots["relation"],
        scored=_damped_root(variance / num_rows, settings.damping).to(dtype),
        looked_up=_damped_root(_share(rows.head, num_entities), settings.damping).to(dtype),
        related=_damped_root(relations, settings.damping).to(dtype),
    )


def drawn_delta(
    scores: Float[Tensor, "row entity"], function: LossFunction, generator: torch.Generator
) -> tuple[Float[Tensor, "row entity"], Float[Tensor, "row entity"]]:
    """Return dL / ds of labels drawn from the model, and the variance of each of its entries.

    Binary cross entropy draws a label for every entity; softmax cross entropy draws one entity per
    row. Numbers are drawn on the CPU in float32 for any type of the model, in the order of the
    rows.
    """
    if function == "binary_cross_entropy":
        chance = scores.sigmoid()
        drawn = torch.rand(scores.shape, generator=generator).to(scores.device) < chance
        return chance - drawn.to(chance.dtype), chance * (1.0 - chance)
    chance = scores.softmax(1)
    place = torch.rand(len(scores), generator=generator).to(chance)[:, None]
    entity = torch.searchsorted(chance.cumsum(1), place, right=True)
    entity = entity.clamp_max(scores.shape[1] - 1)
    delta = chance.scatter_add(1, entity, torch.full_like(place, -1.0))
    return delta, chance * (1.0 - chance)


def leading_eigenvectors(
    values: Float[Tensor, "n dim"], rank: int
) -> tuple[Float[Tensor, "rank"], Float[Tensor, "dim rank"], Tensor]:
    """Return the largest eigenvalues of X^T X, their eigenvectors, and the trace, for values X.

    They are computed from the smaller of X^T X and X X^T, which have the same nonzero eigenvalues.
    Only its lower triangle and the returned eigenvectors are computed.
    """
    tall = len(values) >= values.shape[1]
    product = _lower_triangle(values.T if tall else values).double()
    size = len(product)
    chosen = size - min(rank, size), size - 1
    found, vectors = map(
        torch.from_numpy, scipy.linalg.eigh(product.cpu().numpy(), subset_by_index=chosen)
    )
    kept = found > size * torch.finfo(values.dtype).eps * found[-1]
    found, vectors = found[kept].to(product), vectors[:, kept].to(values)
    if not tall:
        vectors = values.T @ (vectors / found.sqrt().to(values.dtype))
    return found, vectors, product.trace()


def _lower_triangle(values: Float[Tensor, "n dim"]) -> Float[Tensor, "n n"]:
    """Return X X^T with zeros to the right of its diagonal blocks, to halve the products."""
    product = values.new_zeros(len(values), len(values))
    for rows in torch.arange(len(values)).tensor_split(NUM_BLOCKS):
        if len(rows):
            start, end = int(rows[0]), int(rows[-1]) + 1
            torch.mm(values[start:end], values[:end].T, out=product[start:end, :end])
    return product


def inverse(
    values: Float[Tensor, "rank"], vectors: Float[Tensor, "dim rank"], trace: Tensor, damping: float
) -> Metric:
    """Return the inverse of a damped second moment, given by its leading eigenvectors.

    The other eigenvalues are replaced by their mean, so that the trace is unchanged.
    """
    dim, rank = vectors.shape
    if float(trace) <= 0.0:  # a factor that is zero for every row: nothing to whiten
        return Metric(1.0, vectors[:, :0], values[:0].to(vectors.dtype))
    damped = damping * trace / dim
    others = (trace - values.sum()).clamp_min(0.0) / max(1, dim - rank)
    scale = 0.0 if rank == dim else float(1.0 / (others + damped))
    return Metric(scale, vectors, (1.0 / (values + damped) - scale).to(vectors.dtype))


def whitening(moment: Float[Tensor, "rows dim"], damping: float) -> Metric:
    """Return C^(-1/2) of a damped second moment C; a diagonal is replaced by its mean."""
    if moment.shape[0] != moment.shape[1]:
        scale = float((1.0 + damping) * moment.mean()) or 1.0
        return Metric(scale**-0.5, moment.new_empty(moment.shape[1], 0), moment.new_empty(0))
    values, vectors = torch.linalg.eigh(moment)
    values = values.clamp_min(0.0)
    return inverse(values, vectors, values.sum(), damping).root


def _second_moment(values: Float[Tensor, "n dim"]) -> Float[Tensor, "rows dim"]:
    """Return the sum of x x^T, `(dim, dim)`, or only its diagonal, `(1, dim)`, if x is long."""
    values = values.double()
    if values.shape[1] > LONGEST_FACTOR:
        return values.square().sum(0, keepdim=True)
    return values.T @ values


def _damped_root(diagonal: Tensor, damping: float) -> Tensor:
    return (diagonal + damping * diagonal.mean()).rsqrt()


def _share(ids: Int[Tensor, "row"], size: int) -> Tensor:
    """Return the share of rows that have each id, `(size,)`."""
    return torch.bincount(ids, minlength=size).double() / len(ids)


def _sampled(trunk: Trunk, rows: DeltaRows, size: int) -> tuple[Queries, Int[Tensor, "row"]]:
    """Return the distinct queries of some rows, without deltas, and the query of each row."""
    fitting = max(1, FEATURES_AT_ONCE // trunk.model.floats_per_query)
    count = min(size, len(rows), fitting)
    index = torch.arange(count, device=rows.head.device) * len(rows) // count
    sample = rows.head[index], rows.relation[index]
    head, relation, query = distinct_queries(trunk.model, *sample)
    activations, hidden = trunk.forward(head, relation)
    base = hidden.new_empty(0, len(trunk.model.entity.weight))
    unused = torch.zeros_like(head), head[:0], torch.zeros_like(hidden)
    return Queries(head, relation, activations, hidden, base, *unused), query


def kept(
    folder: Path | None,
    depends_on: Mapping[str, Any],
    make: Callable[[], Geometry],
    device: torch.device,
) -> Geometry:
    """Return a geometry from a folder, or estimate it and keep it there.

    The moments of training rows do not depend on what is explained, so only the first explanation
    of a model estimates them. The name of a file is a digest of `depends_on`, code, device and
    number of threads, which can change a bit of the geometry.
    """
    if folder is None:
        return _geometry(_tensors(make()))
    machine = torch.__version__, torch.get_num_threads(), torch.backends.cpu.get_cpu_capability()
    whole = {**depends_on, "machine": [code_digest(), device_name(device), *map(str, machine)]}
    path = folder / f"{sha256_of_content(whole)[:40]}.safetensors"
    if path.is_file():
        try:
            # A copy, because products can depend on where in memory their operands begin.
            tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
            path.touch()
            return _geometry({name: tensor.to(device) for name, tensor in tensors.items()})
        except UNREADABLE as error:
            logger.warning("%s cannot be used (%s); it is estimated again", path, described(error))
    # As if it were read: the memory layout of an operand can change the last bit of a product.
    geometry = _geometry(_tensors(make()))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            save_tensors({n: t.cpu() for n, t in _tensors(geometry).items()}, temporary)
        states, total = [(path, path.stat()) for path in folder.glob("*.safetensors")], 0
        for path, state in sorted(states, key=lambda each: each[1].st_mtime_ns, reverse=True):
            total += state.st_size
            if total > LARGEST_FOLDER_BYTES:
                path.unlink(missing_ok=True)
    except OSError as error:
        logger.warning(
            "%s cannot be written (%s), so the next explanation estimates the moments again; "
            "set XDG_CACHE_HOME to a folder that you can write",
            path,
            described(error),
        )
    return geometry


def _tensors(geometry: Geometry) -> dict[str, Tensor]:
    found = {}
    for field in fields(geometry):
        value = getattr(geometry, field.name)
        if isinstance(value, Metric):
            found[f"{field.name}/{SCALE}"] = torch.tensor(value.scale, dtype=torch.float64)
            found[f"{field.name}/{VECTORS}"] = value.vectors.contiguous()
            found[f"{field.name}/{WEIGHTS}"] = value.weights.contiguous()
        elif value is not None:
            found[field.name] = value.contiguous()
    return found


def _geometry(tensors: Mapping[str, Tensor]) -> Geometry:
    parts: dict[str, Any] = {"features": None}
    for name, tensor in tensors.items():
        field, _, kind = name.partition("/")
        if kind == SCALE:
            others = (tensors[f"{field}/{other}"] for other in (VECTORS, WEIGHTS))
            parts[field] = Metric(float(tensor), *others)
        elif not kind:
            parts[field] = tensor
    return Geometry(**parts)
