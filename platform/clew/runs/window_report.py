"""Data models of the JSON files of explanations of texts and sequences, by training windows."""

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, field
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from clew.files import write_whole
from clew.names import SETTING_SEARCH, model_notes, of_the_last_layers
from clew.runs import influence_forms as forms
from clew.runs.influence_report import InfluenceEntry, read_report
from clew.runs.validation_record import Label, label_of

TEXT_INFLUENCE_JSON = "text_influence.json"
SEQUENCE_INFLUENCE_JSON = "sequence_influence.json"
SEQUENCE_INFLUENCE_PICTURE = "sequence_influence.png"
SHOWN_CHARACTERS = 96


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


def numbers_of(entry: InfluenceEntry | WindowScore, steps: Sequence[int]) -> dict[str, object]:
    """Return the numbers of an example by their columns: rank, influence, spread, its shares."""
    more: dict[str, object] = {"cosine": entry.cosine}
    if isinstance(entry, InfluenceEntry):
        more |= {forms.SPREAD_COLUMN: entry.spread, forms.AGREEING_COLUMN: entry.runs_agreeing}
        more |= {"train_index": entry.train_index}
    shares = zip(steps, entry.by_checkpoint, strict=False)
    return {
        "rank": entry.rank,
        "influence": entry.influence,
        **{column: value for column, value in more.items() if value is not None},
        **{f"{forms.CHECKPOINT_PREFIX}{step}": value for step, value in shares},
        **{f"{forms.PART_PREFIX}{part}": value for part, value in entry.by_part.items()},
    }


@dataclass(frozen=True, kw_only=True)
class WindowReport(ABC, Generic[W]):
    """An explanation: the training windows with the strongest influence on a prediction."""

    loss_unit: ClassVar[str] = forms.NATS
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
    def form(self) -> forms.Form:
        """Name, unit and meaning of the scores."""
        return forms.form_of(self.settings or {"score": "raw"}, loss_unit=self.loss_unit)

    @property
    def label(self) -> Label:
        """Whether the scores predict training without windows: no command tests that."""
        return label_of(None, {"score": self.form.key}, None)

    @property
    def listed(self) -> tuple[W, ...]:
        """The windows that helped, strongest first, then those that opposed, strongest first."""
        return (*self.proponents, *self.opponents)

    @property
    def num_scored(self) -> int:
        return int(self.settings.get(SETTING_SEARCH, {}).get("num_scored", self.num_windows))

    def notes(self) -> list[str]:
        """Return notes on the scores: what they leave out or do not describe."""
        found = model_notes(self.settings)
        if count := self.settings.get("num_last_layers"):
            found.append(of_the_last_layers(count))
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
        content = asdict(self) | {"label": asdict(self.label)}
        write_whole(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")

    @classmethod
    def read(cls, path: Path) -> Self:
        return read_report(path, TypeAdapter(cls), f"an explanation of a {cls.explained}", "1")


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
        per_byte = self.loss / max(1, len(self.continuation.encode()))
        loss = f"loss {self.loss:.3f} nats, {per_byte:.3f} per byte"
        return [repr(self.prompt), f"  ⟶ {self.continuation!r}   {loss}"]

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
    loss_unit: ClassVar[str] = forms.UNIT_OF_THE_LOSS

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
            f"{self._with_unit(self.prediction)}, true {self._with_unit(self.target)}"
        ]

    def shown(self, window: FrameWindow) -> str:
        where = f"frame {window.last_frame} (group {window.group})"
        return f"{where}, target {self._with_unit(window.target)}"

    def _with_unit(self, value: float) -> str:
        return f"{value:.4g} {self.unit}".rstrip()
