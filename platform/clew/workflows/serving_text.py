"""Serving code of a registered language model: it continues the prompt of each row."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from clew.errors import ConfigError
from clew.runs.served_model import Row, ServedModel, Settings, set_model


class TextSettings(Settings):
    """Length of the text, and how its tokens are drawn."""

    max_tokens: Annotated[int, Field(ge=0, le=10_000)] = 200
    temperature: Annotated[float, Field(ge=0)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0


class ServedWriter(ServedModel[TextSettings]):
    """Continues prompts; the same seed gives the same text."""

    expects = (
        "rows with the text prompt, and among params max_tokens (0 to 10000), temperature (0 or "
        "more), top_p (above 0, at most 1) and seed (0 or more)"
    )
    columns = frozenset({"prompt"})
    settings = TextSettings

    def load(self, folder: Path) -> None:
        from clew.language_modeling.writer import load_text_folder

        self._model = load_text_folder(folder)

    def answer(self, rows: Sequence[Row], settings: TextSettings) -> list[dict[str, Any]]:
        """Return the text that follows each row's prompt."""
        from clew.language_modeling.model import Sampling
        from clew.language_modeling.writer import continuation

        if any(not isinstance(row.get("prompt"), str) for row in rows):
            raise ConfigError(f"a row has no prompt; expected {self.expects}")
        sampling = Sampling(settings.temperature, top_p=settings.top_p)
        return [
            {
                "text": continuation(
                    self._model,
                    row["prompt"],
                    max_tokens=settings.max_tokens,
                    sampling=sampling,
                    seed=settings.seed,
                )
            }
            for row in rows
        ]


set_model(ServedWriter())
