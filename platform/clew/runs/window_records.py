"""Records of explanations by training windows: of a continued text, and of a sequence of frames.

One JSON file each, written by the tracers and read by the dashboard; beside that of a sequence
lies a picture of its frames. Nothing here needs torch.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

from clew.errors import DataError

WINDOW_SCHEMA_VERSION = 1
SHOWN_CHARACTERS = 96
TEXT_INFLUENCE_JSON = "text_influence.json"
SEQUENCE_INFLUENCE_JSON = "sequence_influence.json"
SEQUENCE_INFLUENCE_PICTURE = "sequence_influence.png"


@dataclass(frozen=True, kw_only=True)
class WindowScore:
    """One training window's influence.

    `rank` counts from 1 among proponents or opponents, strongest first. `by_checkpoint` and
    `by_part` add up to `influence`.
    """

    rank: int
    window: int
    """Number of the window among the training windows."""
    influence: float
    cosine: float | None = None
    by_checkpoint: tuple[float, ...] = ()
    by_part: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def read(cls, item: Mapping[str, Any]) -> Self:
        """Return an entry whose values are of the right kind, whatever the file holds."""
        cosine = item.get("cosine")
        plain = {
            "rank": int(item["rank"]),
            "window": int(item["window"]),
            "influence": float(item["influence"]),
            "cosine": None if cosine is None else float(cosine),
            "by_checkpoint": tuple(float(value) for value in item.get("by_checkpoint", ())),
            "by_part": {str(part): float(v) for part, v in dict(item.get("by_part", {})).items()},
        }
        return cls(**(dict(item) | plain | cls._own(item)))

    @classmethod
    def _own(cls, item: Mapping[str, Any]) -> dict[str, Any]:
        """Return what this kind of window has beyond its influence."""
        return {}


@dataclass(frozen=True, kw_only=True)
class TextWindow(WindowScore):
    """A training window of a text."""

    first_token: int
    """Where it begins in the packed corpus."""
    text: str

    @classmethod
    def _own(cls, item: Mapping[str, Any]) -> dict[str, Any]:
        return {"first_token": int(item["first_token"]), "text": str(item["text"])}


@dataclass(frozen=True, kw_only=True)
class FrameWindow(WindowScore):
    """A training window of frames."""

    last_frame: int
    """Its last frame in the data."""
    group: str
    target: float

    @classmethod
    def _own(cls, item: Mapping[str, Any]) -> dict[str, Any]:
        own = {"last_frame": int(item["last_frame"]), "target": float(item["target"])}
        return own | {"group": str(item["group"])}


W = TypeVar("W", bound=WindowScore)


@dataclass(frozen=True, kw_only=True)
class WindowReport(ABC, Generic[W]):
    """What an explanation is due to."""

    explained: ClassVar[str]
    """What is explained, in words."""
    window_kind: ClassVar[type[WindowScore]]

    run_id: str
    dataset: str
    loss: float
    """Summed loss of what is explained, at the last checkpoint."""
    self_influence: float
    num_windows: int
    seconds: float
    device: str
    steps: tuple[int, ...]
    """Optimizer step of each checkpoint."""
    weights: tuple[float, ...]
    """Learning-rate weight of each checkpoint."""
    proponents: tuple[W, ...]
    opponents: tuple[W, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    sign: str
    schema_version: int = WINDOW_SCHEMA_VERSION

    @abstractmethod
    def headline(self) -> list[str]:
        """Return what is explained, in lines for people."""

    @abstractmethod
    def shown(self, window: W) -> str:
        """Return a training window in one line for people."""

    def write(self, path: Path) -> None:
        """Write the report as JSON, whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(asdict(self), indent=1, ensure_ascii=False)
        temporary = path.with_name(f".{path.name}.tmp")
        temporary.write_text(text + "\n", encoding="utf-8")
        temporary.replace(path)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a report.

        Raises:
            DataError: the file is missing, malformed or of another version.
        """
        what = f"explanation of a {cls.explained}"
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise DataError(f"{path}: not a readable {what} ({error})") from None
        version = content.get("schema_version") if isinstance(content, dict) else None
        if version != WINDOW_SCHEMA_VERSION:
            raise DataError(
                f"{path}: schema_version is {version!r}, this version of Clew reads "
                f"{WINDOW_SCHEMA_VERSION}; trace the {cls.explained} again"
            )
        try:
            for sign in ("proponents", "opponents"):
                content[sign] = tuple(cls.window_kind.read(item) for item in content[sign])
            for key in ("steps", "weights"):
                content[key] = tuple(content[key])
            for key in cls._numbers():
                content[key] = float(content[key])
            for key in ("dataset", *cls._texts()):
                content[key] = str(content[key])
            content["settings"] = dict(content["settings"])
            return cls(**content)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"{path}: not an {what} ({error})") from None

    @classmethod
    def _numbers(cls) -> tuple[str, ...]:
        return "loss", "self_influence", "seconds"

    @classmethod
    def _texts(cls) -> tuple[str, ...]:
        return ()


@dataclass(frozen=True, kw_only=True)
class TextInfluenceReport(WindowReport[TextWindow]):
    """A continuation of a prompt and what it is due to."""

    explained: ClassVar[str] = "text"
    window_kind: ClassVar[type[WindowScore]] = TextWindow

    prompt: str
    continuation: str
    sign: str = "positive scores lower the continuation's loss (proponents)"

    def headline(self) -> list[str]:
        """Return prompt and continuation."""
        return [repr(self.prompt), f"  ⟶ {self.continuation!r}   loss {self.loss:.3f} nats"]

    def shown(self, window: TextWindow) -> str:
        """Return the beginning of a training window."""
        text = window.text
        short = text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "…"
        return f"window {window.window}: {short!r}"

    @classmethod
    def _texts(cls) -> tuple[str, ...]:
        return "prompt", "continuation"


@dataclass(frozen=True, kw_only=True)
class SequenceInfluenceReport(WindowReport[FrameWindow]):
    """A prediction from frames and what it is due to; targets and predictions in `unit`."""

    explained: ClassVar[str] = "sequence"
    window_kind: ClassVar[type[WindowScore]] = FrameWindow

    unit: str
    last_frame: int
    group: str
    target: float
    prediction: float
    sign: str = "positive scores lower the test window's loss (proponents)"

    def headline(self) -> list[str]:
        """Return where the window is, what was predicted and what is true."""
        return [
            f"window that ends at frame {self.last_frame} (group {self.group}): predicted "
            f"{self.prediction:.4g} {self.unit}, true {self.target:.4g} {self.unit}"
        ]

    def shown(self, window: FrameWindow) -> str:
        """Return where a training window is, and its target."""
        where = f"frame {window.last_frame} (group {window.group})"
        return f"{where}, target {window.target:.4g} {self.unit}"

    @classmethod
    def _numbers(cls) -> tuple[str, ...]:
        return *super()._numbers(), "target", "prediction"

    @classmethod
    def _texts(cls) -> tuple[str, ...]:
        return "unit", "group"
