"""Writes checkpoints during training and hands them to the tracker."""

import dataclasses
import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from clew import names
from clew.errors import NonFiniteLossError
from clew.training.checkpoints import Manifest, read_manifest, write_checkpoint
from clew.training.state import Resumable

logger = logging.getLogger(__name__)


@dataclass
class Checkpointer:
    """Keeps the newest checkpoint (or all) and the best one in a folder, all of them in the store.

    Every process takes part in gathering the state; only the main one writes.
    """

    folder: Path
    origin: Manifest
    resumable: Resumable
    keep_all: bool = False
    newest: Path | None = None
    _best_unsent: bool = False

    def write(self, name: str, metrics: Mapping[str, float] | None = None) -> None:
        """Write a checkpoint with the learning-rate weight collected so far."""
        self._refuse_non_finite()
        self.resumable.progress.checkpoint_step = self.resumable.progress.step
        manifest = self._manifest(metrics or {})
        state = self.resumable.capture()
        if not self.resumable.world.is_main:
            return
        self.send_best()
        path = self.folder / names.ARTIFACT_CHECKPOINTS / name
        write_checkpoint(path, self.resumable.model, manifest, state)
        self._store(path, manifest)

    def _store(self, path: Path, manifest: Manifest) -> None:
        """Hand a checkpoint to the tracker; on the disk, only the newest stays."""
        self.resumable.history.tracker.checkpoint(
            path,
            folder=f"{names.ARTIFACT_CHECKPOINTS}/{path.name}",
            step=manifest.step,
            metrics=manifest.metrics,
        )
        if self.newest is not None and self.newest != path and not self.keep_all:
            shutil.rmtree(self.newest, ignore_errors=True)
        self.newest = path

    def write_best(self, metrics: Mapping[str, float]) -> None:
        """Write the best checkpoint so far; it is sent with the next regular one."""
        self._refuse_non_finite()
        if not self.resumable.world.is_main:
            return
        write_checkpoint(self.best, self.resumable.model, self._manifest(metrics))
        self._best_unsent = True

    @property
    def best(self) -> Path:
        """Folder of the best checkpoint."""
        return self.folder / names.ARTIFACT_BEST

    def last_good(self) -> str:
        """Say, for an error message, what is left to continue from."""
        run_id = self.resumable.history.tracker.run_id
        if self.newest is None:
            return "no checkpoint had been written yet"
        resume = f"; continue with --resume {run_id}" if run_id else ""
        return f"the last good checkpoint is {self.newest.name}{resume}"

    def adopt(self, paths: Sequence[Path], best: Path | None) -> None:
        """Store the checkpoints of a resumed run with this one; `paths` in order of steps."""
        for path in paths:
            own = self.folder / names.ARTIFACT_CHECKPOINTS / path.name
            if path != own:
                shutil.copytree(path, own, dirs_exist_ok=True)
            self._store(own, read_manifest(own))
        if best is not None:
            if best != self.best:
                shutil.copytree(best, self.best)
            self._best_unsent = True

    def send_best(self) -> None:
        """Send the best checkpoint if that was not done yet."""
        if self._best_unsent:
            self.resumable.history.tracker.artifact(self.best)
            self._best_unsent = False

    def _manifest(self, metrics: Mapping[str, float]) -> Manifest:
        progress = self.resumable.progress
        return dataclasses.replace(
            self.origin,
            step=progress.step,
            epoch=progress.epoch,
            previous_step=progress.previous_step,
            learning_rate_weight=progress.learning_rate_weight,
            metrics=dict(metrics),
        )

    def _refuse_non_finite(self) -> None:
        """A gradient can overflow while the loss is still finite; never keep its effect."""
        step = self.resumable.progress.step
        for name, parameter in self.resumable.model.named_parameters():
            if not bool(torch.isfinite(parameter).all()):
                raise NonFiniteLossError(
                    f"parameter {name} holds NaN or infinity at step {step}; no checkpoint was "
                    "written. Lower optimizer.learning_rate or set "
                    f"training.max_grad_norm; {self.last_good()}"
                )
