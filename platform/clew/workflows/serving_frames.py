"""Serving code of a registered model of image sequences: each row is a window of frames."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from clew.errors import ConfigError
from clew.runs.served_model import Row, ServedModel, Settings, set_model


class WindowSettings(Settings):
    """Share of targets that the intervals should contain."""

    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.9


class ServedWindows(ServedModel[WindowSettings]):
    """Predicts a value and an interval for each window of frames."""

    expects = (
        "rows with images (time, channel, height, width) and, if the model needs them, scalars "
        "(time, scalar) and the number present, and among params confidence (between 0 and 1)"
    )
    columns = frozenset({"images", "scalars", "present"})
    settings = WindowSettings

    def load(self, folder: Path) -> None:
        from clew.image_sequences.prediction import WindowPredictor

        self._predictor = WindowPredictor(folder)

    def answer(self, rows: Sequence[Row], settings: WindowSettings) -> list[dict[str, Any]]:
        """Return the value of each window."""
        if any("images" not in row for row in rows):
            raise ConfigError(f"a row has no images; expected {self.expects}")
        return [
            self._predictor.predict(
                row["images"],
                row.get("scalars", ()),
                row.get("present"),
                confidence=settings.confidence,
            )
            for row in rows
        ]


set_model(ServedWindows())
