"""Reports of explanations by training windows, for a continued text or a sequence of frames.

Each report is one JSON file; the tracers write it and the dashboard reads it with these models. The
report of a sequence also has a picture of its frames. This module does not need torch.
"""

import json
from abc import ABC, abstractmethod
from dataclasses import asdict, field
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from clew.errors import DataError, described, quoted
from clew.files import write_whole
from clew.names import SETTING_SEARCH, average_notes
from clew.runs.influence_forms import NATS, UNIT_OF_THE_LOSS, Form, form_of

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
    """Position of the window among the training windows."""
    influence: float
    cosine: float | None = None
    by_checkpoint: tuple[float, ...] = ()
    by_part: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TextWindow(WindowScore):
    """A training window of a text."""

    first_token: int
    """Position of its first token in the packed corpus."""
    text: str


@dataclass(frozen=True, kw_only=True)
class FrameWindow(WindowScore):
    """A training window of frames."""

    last_frame: int
    """Its last frame in the data."""
    group: str
    target: float


W = TypeVar("W", bound=WindowScore)


@dataclass(frozen=True, kw_only=True)
class WindowReport(ABC, Generic[W]):
    """An explanation: the training windows with the strongest influence on a prediction."""

    loss_unit: ClassVar[str] = NATS
    explained: ClassVar[str]
    """The kind of prediction that is explained: `text` or `sequence`."""

    run_id: str
    dataset: str
    loss: float
    """Summed loss of the explained prediction, at the last checkpoint."""
    self_influence: float | None
    """None for unrolled scores, which do not define it."""
    num_windows: int
    seconds: float
    device: str
    steps: tuple[int, ...]
    """Optimizer step of each checkpoint."""
    weights: tuple[float, ...]
    """Learning-rate weight of each checkpoint."""
    proponents: tuple[W, ...]
    opponents: tuple[W, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    sign: str
    schema_version: Literal[1] = 1

    @property
    def form(self) -> Form:
        return form_of(self.settings or {"score": "raw"}, loss_unit=self.loss_unit)

    @property
    def listed(self) -> tuple[W, ...]:
        """The windows that helped, strongest first, then those that opposed, strongest first."""
        return (*self.proponents, *self.opponents)

    @property
    def num_scored(self) -> int:
        return int(self.settings.get(SETTING_SEARCH, {}).get("num_scored", self.num_windows))

    def notes(self) -> list[str]:
        """Return notes on the scores: what they leave out or do not describe."""
        found = average_notes(self.settings)
        if search := self.settings.get(SETTING_SEARCH):
            kinds = "proponents and opponents" if search.get("opponents", True) else "proponents"
            found += [
                f"An index chose {self.num_scored:,} of {self.num_windows:,} training windows "
                f"as likely {kinds}; only these windows were scored."
            ]
        return found

    @abstractmethod
    def headline(self) -> list[str]:
        """Return the explained prediction as lines of text."""

    @abstractmethod
    def shown(self, window: W) -> str:
        """Return a training window as one line of text."""

    def write(self, path: Path) -> None:
        """Write the report as JSON, completely or not at all."""
        write_whole(path, json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n")

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a report.

        Raises:
            DataError: The file is missing or malformed, or has another schema version.
        """
        try:
            return TypeAdapter(cls).validate_json(path.read_bytes())
        except OSError as error:
            reason = described(error)
        except ValidationError as error:
            reason = described(error)
            for problem in error.errors():
                if problem["loc"] == ("schema_version",):
                    reason = (
                        f"schema_version is {quoted(problem['input'])}, this version of Clew reads "
                        f"1; trace the {cls.explained} again"
                    )
        raise DataError(f"{path}: not a readable explanation of a {cls.explained} ({reason})")


@dataclass(frozen=True, kw_only=True)
class TextInfluenceReport(WindowReport[TextWindow]):
    """A continuation of a prompt, and the training windows that influenced it."""

    explained: ClassVar[str] = "text"

    proponents: tuple[TextWindow, ...]
    opponents: tuple[TextWindow, ...]
    prompt: str
    continuation: str
    sign: str = "positive scores lower the continuation's loss (proponents)"

    def headline(self) -> list[str]:
        return [repr(self.prompt), f"  ⟶ {self.continuation!r}   loss {self.loss:.3f} nats"]

    def shown(self, window: TextWindow) -> str:
        text = window.text
        short = text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "…"
        return f"window {window.window}: {short!r}"


@dataclass(frozen=True, kw_only=True)
class SequenceInfluenceReport(WindowReport[FrameWindow]):
    """A prediction from frames, and the training windows that influenced it.

    Targets and predictions are in `unit`.
    """

    explained: ClassVar[str] = "sequence"
    loss_unit: ClassVar[str] = UNIT_OF_THE_LOSS

    proponents: tuple[FrameWindow, ...]
    opponents: tuple[FrameWindow, ...]
    unit: str
    last_frame: int
    group: str
    target: float
    prediction: float
    sign: str = "positive scores lower the test window's loss (proponents)"

    def headline(self) -> list[str]:
        """Return the position of the window, the predicted value and the true value."""
        return [
            f"window that ends at frame {self.last_frame} (group {self.group}): predicted "
            f"{self.prediction:.4g} {self.unit}, true {self.target:.4g} {self.unit}"
        ]

    def shown(self, window: FrameWindow) -> str:
        where = f"frame {window.last_frame} (group {window.group})"
        return f"{where}, target {window.target:.4g} {self.unit}"
