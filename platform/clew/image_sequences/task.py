"""The task of image-sequence regression: its examples, model, loss, metrics and report."""

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn, where

from clew import names
from clew.config.image_sequences import ImageSequenceData, SequenceRegressionModel
from clew.config.loss import HuberLoss, MaeLoss, MseLoss, RegressionLoss
from clew.config.schema import TASK_KINDS, RunConfig
from clew.errors import ConfigError
from clew.files import write_json
from clew.image_sequences.baselines import baseline_predictions, known_values
from clew.image_sequences.errors import (
    HeldOutErrors,
    RegressionResult,
    conformal_half_width,
    write_regression_report,
)
from clew.image_sequences.model import SequenceRegressor, SequenceShape
from clew.image_sequences.prediction import SEQUENCES_FILE, predict_windows
from clew.image_sequences.windows import (
    SequenceBatch,
    SequenceSplits,
    SequenceWindows,
    fit_scalers,
    present_values,
)
from clew.training.task import ExampleValues, LossSum

logger = logging.getLogger(__name__)


class SequenceRegression:
    """Predicts a physical quantity from a short sequence of images and their scalars."""

    kind = TASK_KINDS["image_sequences"].task

    def __init__(self, splits: SequenceSplits, config: RunConfig) -> None:
        data, model, loss = config.data, config.model, config.loss
        if not isinstance(data, ImageSequenceData):
            raise ConfigError(f"this task needs data.kind=image_sequences, not {data.kind}")
        assert isinstance(model, SequenceRegressionModel)  # the configuration refuses others
        assert isinstance(loss, MaeLoss | MseLoss | HuberLoss)
        self.splits, self.data_config, self.model_config = splits, data, model
        self._change, self._validates = model.predicts == "change", data.hold_out_validation
        self.dataset = Path(data.source).stem
        self.data_fingerprint = splits.fingerprint
        self.scalers = fit_scalers(splits.windows["train"], change=self._change)
        self._check_held_out()
        self._loss = loss
        self._batch_size = config.evaluation.batch_size
        self._results: dict[str, RegressionResult] = {}
        self._baselines: dict[str, dict[str, np.ndarray]] = {}

    def _check_held_out(self) -> None:
        """Refuse what is missing in held-out windows, before a training rather than after it."""
        for split in ("valid", "test"):
            windows = self.splits.windows[split]
            if self._change:
                present_values(windows)
            if windows.refuse_nan:
                for _ in windows.pixels():
                    pass

    def describe(self) -> dict[str, str]:
        """Return tags with the unit of the errors and the held-out groups."""
        groups = self.splits.groups
        return {
            names.TAG_UNIT: self.splits.table.unit,
            "clew.test_group": ", ".join(groups["test"]),
            "clew.validation_group": ", ".join(groups["valid"]) if self._validates else "none",
        }

    def build_model(self) -> SequenceRegressor:
        """Build the model with the scalers of the training windows."""
        channels, scalars = self.splits.table.images.shape[1], self.splits.encoding.size
        data, mask = self.data_config, self.data_config.nan_pixels == "mask"
        shape = SequenceShape(data.temporal_frames, channels, scalars, mask)
        model = SequenceRegressor(shape, self.model_config)
        with torch.no_grad():
            for name, value in vars(self.scalers).items():
                getattr(model, name).copy_(torch.as_tensor(value))
        return model

    def train_examples(self) -> SequenceWindows:
        return self.splits.windows["train"]

    def loss(self, model: nn.Module, batch: SequenceBatch) -> LossSum:
        """Return the summed loss; in training, pixels get noise first."""
        return LossSum(self.example_losses(model, batch).sum(), batch.count)

    def example_losses(self, model: nn.Module, batch: SequenceBatch) -> Tensor:
        """Return the loss of each window, `(window,)`."""
        assert isinstance(model, SequenceRegressor)
        images = self.noisy(batch.images) if model.training else batch.images
        goal = batch.target - batch.present if self._change else batch.target
        wanted = (goal - model.target_mean) / model.target_std
        errors = model(images, batch.scalars) - wanted
        return regression_losses(errors, self._loss)

    def noisy(self, images: Tensor) -> Tensor:
        """Return pixels with random noise, as configured."""
        if not self.data_config.pixel_noise:
            return images
        deviation = torch.from_numpy(self.scalers.image_std).to(images)
        noise = torch.randn(images.shape).to(images.device)
        return images + self.data_config.pixel_noise * deviation[:, None, None] * noise

    def predict(
        self, model: nn.Module, windows: SequenceWindows, device: torch.device
    ) -> np.ndarray:
        """Return predictions in the target's unit, `(window,)`, float64."""
        assert isinstance(model, SequenceRegressor)
        return predict_windows(model, windows, batch_size=self._batch_size, device=device)

    def held_out_errors(self, model: nn.Module, device: torch.device) -> HeldOutErrors | None:
        """Return the errors on validation and test windows; None if no group is for validation."""
        if not self._validates:
            return None
        held_out = [self.splits.windows[split] for split in ("valid", "test")]
        return HeldOutErrors(*(self.predict(model, w, device) - w.targets for w in held_out))

    def evaluate(self, model: nn.Module, split: str, device: torch.device) -> RegressionResult:
        windows = self.splits.windows[split]
        if not self._baselines:
            logger.info("%s", known_values(windows.table)[1])
        if split not in self._baselines:
            train = self.train_examples()
            self._baselines[split] = baseline_predictions(train, windows, change=self._change)
        found, baselines = self.predict(model, windows, device), self._baselines[split]
        return RegressionResult(found, windows.targets, windows.groups, windows.ends, baselines)

    def has_examples(self, split: str) -> bool:
        return len(self.splits.windows[split]) > 0

    @torch.no_grad()
    def metrics(self, model: nn.Module, split: str, device: torch.device) -> dict[str, float]:
        """Return errors of the model and the baselines in the target's unit.

        For the test split, the coverage of intervals is included.
        """
        result = self.evaluate(model, split, device)
        if split == "test" and self._validates:
            held_out = self.evaluate(model, "valid", device)
            width = conformal_half_width(held_out.errors)
            if np.isfinite(width):
                result = replace(result, interval=np.full(len(result.target), width))
        self._results[split] = result
        return result.metrics(split)

    def example_values(
        self, model: nn.Module, split: str, name: str, device: torch.device
    ) -> ExampleValues | None:
        """Return the errors behind a metric; none if no group is held out for validation."""
        values = self._results[split].by_window(name)
        if values is not None and split == "valid" and not self._validates:
            values = values[:0]  # these windows are those of the test group
        return None if values is None else ExampleValues(values, "windows", in_sequence=True)

    def write_artifacts(self, folder: Path) -> None:
        """Write the shape, unit, names, splits and target scaler of the data to a JSON file."""
        table = self.splits.table
        content = {
            "source": Path(table.source).name,
            "frames": list(table.images.shape),
            "unit": table.unit,
            "step": table.step,
            "target_name": table.target_name,
            "scalar_names": list(table.scalar_names),
            "windows": {split: len(windows) for split, windows in self.splits.windows.items()},
            "groups": self.splits.groups,
            "target_mean": self.scalers.target_mean,
            "target_std": self.scalers.target_std,
        }
        write_json(folder / SEQUENCES_FILE, content)

    def write_report(self, split: str, folder: Path) -> None:
        """Write predictions, errors by group and pictures of the last evaluation of a split."""
        if split in self._results:
            folder.mkdir(parents=True, exist_ok=True)
            write_regression_report(self._results[split], split, self.splits.table.unit, folder)


Errors = Float[Tensor, "example"]


def regression_losses(errors: Errors, config: RegressionLoss) -> Errors:
    """Return the loss of each example, in float32 or the precision of `errors` if that is higher.

    Args:
        errors: Prediction minus target, in standard deviations of the training targets.
        config: Settings of the loss.
    """
    errors = errors.float() if errors.dtype.itemsize < 4 else errors
    match config:
        case MaeLoss():
            return errors.abs()
        case MseLoss():
            return errors.square()
        case HuberLoss():
            return huber(errors, config.delta)


def huber(errors: Errors, delta: float) -> Errors:
    """Return e^2 / 2 up to |e| = delta, and delta (|e| - delta / 2) beyond (Huber, 1964)."""
    size = errors.abs()
    return where(size <= delta, 0.5 * errors.square(), delta * (size - 0.5 * delta))
