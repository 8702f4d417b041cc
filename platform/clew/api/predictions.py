"""What `Model.predict` does for models of text and of image sequences."""

from pathlib import Path

import pandas as pd

from clew.files import working_folder
from clew.language_modeling.generation import Sampling
from clew.workflows.predict_frames import predict_frames
from clew.workflows.predict_text import TextRequest, predict_text


def continued(
    reference: str, prompt: str, *, max_tokens: int, sampling: Sampling, seed: int
) -> str:
    """Return the text that a language model writes after a prompt.

    Raises:
        UsageError: the model is none of language, or the prompt is empty or not in its vocabulary.
    """
    request = TextRequest(prompt=prompt, max_tokens=max_tokens, sampling=sampling, seed=seed)
    return "".join(predict_text(reference, request))


def predicted(reference: str, frames: Path, *, confidence: float) -> pd.DataFrame:
    """Return what `clew predict --frames` writes; `attrs` holds the unit and the intervals.

    Raises:
        UsageError: the model is none of image sequences, or the frames are not such as it was
            trained on.
    """
    with working_folder("predict") as folder:
        output = folder / "predictions.parquet"
        said = predict_frames(reference, frames, output, confidence=confidence)
        frame = pd.read_parquet(output)
    content = said.as_dict()
    frame.attrs |= {key: content[key] for key in ("target_name", "unit", "intervals", "notes")}
    return frame
