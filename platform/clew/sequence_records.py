"""Record of an explained prediction from a sequence of frames: the training windows behind it.

One JSON file, beside a picture of the frames. Nothing here needs torch.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from clew.errors import DataError

SEQUENCE_INFLUENCE_SCHEMA_VERSION = 1
SEQUENCE_INFLUENCE_JSON = "sequence_influence.json"
SEQUENCE_INFLUENCE_PICTURE = "sequence_influence.png"
SEQUENCE_SIGN_CONVENTION = "positive scores lower the test window's loss (proponents)"


@dataclass(frozen=True, slots=True)
class SequenceEntry:
    """One training window's influence on the prediction.

    `rank` counts from 1 among proponents or opponents, strongest first. `by_checkpoint` and
    `by_part` add up to `influence`.
    """

    rank: int
    window: int
    """Number of the window among the training windows."""
    last_frame: int
    """Its last frame in the data."""
    group: str
    target: float
    influence: float
    cosine: float | None = None
    by_checkpoint: tuple[float, ...] = ()
    by_part: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SequenceInfluenceReport:
    """A prediction and what it is due to; targets and predictions in `unit`."""

    run_id: str
    dataset: str
    unit: str
    last_frame: int
    group: str
    target: float
    prediction: float
    loss: float
    self_influence: float
    num_windows: int
    seconds: float
    device: str
    steps: tuple[int, ...]
    """Optimizer step of each checkpoint."""
    weights: tuple[float, ...]
    """Learning-rate weight of each checkpoint."""
    proponents: tuple[SequenceEntry, ...]
    opponents: tuple[SequenceEntry, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    sign: str = SEQUENCE_SIGN_CONVENTION
    schema_version: int = SEQUENCE_INFLUENCE_SCHEMA_VERSION


def write_sequence_influence(report: SequenceInfluenceReport, path: Path) -> None:
    """Write a report as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(report), indent=1) + "\n", encoding="utf-8")


def read_sequence_influence(path: Path) -> SequenceInfluenceReport:
    """Read a report.

    Raises:
        DataError: the file is missing, malformed or of another version.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: not a readable explanation of a sequence ({error})") from None
    version = content.get("schema_version") if isinstance(content, dict) else None
    if version != SEQUENCE_INFLUENCE_SCHEMA_VERSION:
        raise DataError(
            f"{path}: schema_version is {version!r}, this version of Clew reads "
            f"{SEQUENCE_INFLUENCE_SCHEMA_VERSION}; trace the sequence again"
        )
    try:
        content |= {name: tuple(content[name]) for name in ("steps", "weights")}
        for name in ("proponents", "opponents"):
            content[name] = tuple(
                SequenceEntry(**(item | {"by_checkpoint": tuple(item["by_checkpoint"])}))
                for item in content[name]
            )
        return SequenceInfluenceReport(**content)
    except (KeyError, TypeError) as error:
        raise DataError(f"{path}: not an explanation of a sequence ({error})") from None
