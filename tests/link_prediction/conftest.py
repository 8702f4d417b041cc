"""Files and graphs that the tests of link-prediction data share."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from clew.link_prediction.triples import KnowledgeGraph
from clew.link_prediction.vocabulary import Vocabulary

Write = Callable[[str, str | bytes], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write text or bytes to a file of the given name, unchanged."""

    def write_file(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write_file


@pytest.fixture
def graph() -> KnowledgeGraph:
    """A random graph with duplicates, loops and entities without training triples."""
    generator = np.random.default_rng(0)

    def triples(count: int, num_entities: int) -> np.ndarray:
        heads, tails = generator.integers(0, num_entities, (2, count))
        relations = generator.integers(0, 3, count)
        return np.stack([heads, relations, tails], axis=1).astype(np.int32)

    return KnowledgeGraph(
        "random",
        Vocabulary.from_names("entity", [f"e{i:02d}" for i in range(20)]),
        Vocabulary.from_names("relation", ["likes", "knows", "is"]),
        train=triples(200, 15),
        valid=triples(30, 20),
        test=triples(30, 20),
    )
