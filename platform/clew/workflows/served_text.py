"""Language modelling as promotion and serving see it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from clew.language_modeling.model_folder import load_text_folder, write_model_folder
from clew.language_modeling.task import LanguageModeling
from clew.language_modeling.writer import continuation

NUM_EXAMPLES, PROMPT_TOKENS = 4, 32


class ServedText:
    """Language modelling: requests are prompts, answers are the texts that follow."""

    examples = "tokens"
    uncalibrated = "text that is drawn has no probabilities to fit"
    serving_code = Path(__file__).with_name("serving_text.py")

    def __init__(self, task: LanguageModeling) -> None:
        self.task = task

    def num_examples(self, split: str) -> int:
        """Return the number of tokens of a split that are predicted."""
        return len(self.task.splits.windows[split].stream) - 1

    def calibrate(self, model: nn.Module) -> None:
        """Return None: nothing is fitted."""

    def write_folder(self, folder: Path, *, checkpoint: Path, calibration: Any, work: Path) -> Path:
        """Gather checkpoint and tokenizer."""
        return write_model_folder(folder, checkpoint=checkpoint, packed=self.task.splits.packed)

    def example_rows(self) -> list[dict[str, str]]:
        """Return beginnings of the training text, at places far from each other."""
        stream, tokenizer = self.task.splits.windows["train"].stream, self.task.splits.tokenizer
        starts = range(0, len(stream), -(-len(stream) // NUM_EXAMPLES))
        texts = [tokenizer.decode(stream[start : start + PROMPT_TOKENS]) for start in starts]
        # The token for unknown text stands for none that could be asked.
        return [{"prompt": text} for text in texts if text and not tokenizer.first_unknown(text)]

    def answer(self, folder: Path, rows: Sequence[dict[str, str]]) -> list[dict[str, Any]]:
        """Return the text that follows each prompt."""
        text_model = load_text_folder(folder)
        return [{"text": continuation(text_model, row["prompt"])} for row in rows]

    def agree(self, one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
        """Compare the texts: the same seed draws the same one."""
        return bool(one["text"] == other["text"])
