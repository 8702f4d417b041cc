"""Record of an explained continuation: what the tracer of texts writes and the dashboard reads.

One JSON file: the prompt, the continuation, and the training windows that made it likelier or less
likely, with their text. Nothing here needs torch.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from clew.errors import DataError

TEXT_INFLUENCE_SCHEMA_VERSION = 1
TEXT_INFLUENCE_JSON = "text_influence.json"
TEXT_SIGN_CONVENTION = "positive scores lower the continuation's loss (proponents)"


@dataclass(frozen=True, slots=True)
class WindowEntry:
    """One training window's influence on the continuation.

    `rank` counts from 1 among proponents or opponents, strongest first. `by_checkpoint` and
    `by_part` add up to `influence`.
    """

    rank: int
    window: int
    """Number of the window among the training windows."""
    first_token: int
    """Where it begins in the packed corpus."""
    text: str
    influence: float
    cosine: float | None = None
    by_checkpoint: tuple[float, ...] = ()
    by_part: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TextInfluenceReport:
    """A continuation and what it is due to."""

    run_id: str
    dataset: str
    prompt: str
    continuation: str
    loss: float
    """Summed loss of the continuation's tokens, in nats."""
    self_influence: float
    num_windows: int
    seconds: float
    device: str
    steps: tuple[int, ...]
    """Optimizer step of each checkpoint."""
    weights: tuple[float, ...]
    """Learning-rate weight of each checkpoint."""
    proponents: tuple[WindowEntry, ...]
    opponents: tuple[WindowEntry, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    sign: str = TEXT_SIGN_CONVENTION
    schema_version: int = TEXT_INFLUENCE_SCHEMA_VERSION


def write_text_influence(report: TextInfluenceReport, path: Path) -> None:
    """Write a report as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(asdict(report), indent=1, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def read_text_influence(path: Path) -> TextInfluenceReport:
    """Read a report.

    Raises:
        DataError: the file is missing, malformed or of another version.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: not a readable explanation of a text ({error})") from None
    version = content.get("schema_version") if isinstance(content, dict) else None
    if version != TEXT_INFLUENCE_SCHEMA_VERSION:
        raise DataError(
            f"{path}: schema_version is {version!r}, this version of Clew reads "
            f"{TEXT_INFLUENCE_SCHEMA_VERSION}; trace the text again"
        )
    try:
        content |= {name: _entries(content[name]) for name in ("proponents", "opponents")}
        content |= {name: tuple(content[name]) for name in ("steps", "weights")}
        content |= {name: float(content[name]) for name in ("loss", "self_influence", "seconds")}
        content |= {name: str(content[name]) for name in ("prompt", "continuation", "dataset")}
        content |= {"settings": dict(content["settings"])}
        return TextInfluenceReport(**content)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{path}: not an explanation of a text ({error})") from None


def _entries(items: list[dict[str, Any]]) -> tuple[WindowEntry, ...]:
    return tuple(_entry(item) for item in items)


def _entry(item: dict[str, Any]) -> WindowEntry:
    """Return an entry whose values are of the right kind, whatever the file holds."""
    cosine = item.get("cosine")
    plain = {
        "rank": int(item["rank"]),
        "window": int(item["window"]),
        "first_token": int(item["first_token"]),
        "text": str(item["text"]),
        "influence": float(item["influence"]),
        "cosine": None if cosine is None else float(cosine),
        "by_checkpoint": tuple(float(value) for value in item.get("by_checkpoint", ())),
        "by_part": {str(part): float(v) for part, v in dict(item.get("by_part", {})).items()},
    }
    return WindowEntry(**(item | plain))
