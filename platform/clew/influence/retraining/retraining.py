"""Trains the model of a run again without some facts, one model at a time, with Clew's trainer.

`stacked` trains many small models at once and gives the same models. The results of
each model for the test triples are kept on the disk, one file per model, so that a killed command
can continue.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path

import numpy as np
import torch

from clew.config.schema import RunConfig
from clew.errors import ConfigError, DataError, described
from clew.files import replacing, working_folder, write_whole
from clew.influence.retraining.outcomes import Examiner, Facts, Outcomes, WithoutFacts
from clew.influence.retraining.stacked import STACK_SIZE, train_stack, why_not_stacked
from clew.link_prediction.models.base import GraphModel
from clew.link_prediction.task import LinkPrediction
from clew.link_prediction.triples import KnowledgeGraph
from clew.runs.base import Tracker
from clew.training.distributed import World
from clew.training.manifest import Manifest
from clew.training.setup import build_trainer, total_steps

NOTHING: Facts = np.empty(0, np.int64)
IDENTITY_FILE = "identity.json"
FIELDS = ("loss", "log_probability", "rank")


@dataclass(frozen=True, eq=False)
class Retraining:
    """The seed and the dropped facts of one retraining."""

    seed: int
    dropped: Facts
    """Dropped facts in ascending order."""

    @property
    def key(self) -> str:
        digest = hashlib.sha256(self.dropped.astype("<i8").tobytes()).hexdigest()[:16]
        return f"seed-{self.seed}-{digest}"


@dataclass(frozen=True)
class Retrainer:
    """Trains models like a run, but with other seeds and without some facts."""

    graph: KnowledgeGraph
    config: RunConfig
    origin: Manifest
    """Manifest of the run's last checkpoint."""
    device: torch.device

    def __post_init__(self) -> None:
        steered = {
            "schedule.kind=plateau": self.config.schedule.kind == "plateau",
            "training.early_stopping_patience": bool(self.config.training.early_stopping_patience),
        }
        for setting in (name for name, is_set in steered.items() if is_set):
            raise ConfigError(
                f"the run was trained with {setting}, so its training depends on validation "
                "results, which change when facts are left out; train a run without this setting "
                "to test explanations"
            )

    @property
    def why_one_at_a_time(self) -> str:
        """Reason why models are not trained together; empty if they are."""
        if self.device.type != "cpu":
            return f"training runs on {self.device.type}"
        return why_not_stacked(self.config, self.graph.num_entities)

    @property
    def models_at_once(self) -> int:
        return 1 if self.why_one_at_a_time else STACK_SIZE

    @property
    def num_steps(self) -> int:
        task = LinkPrediction(self.graph, self.config)
        return total_steps(self.config, task, World())

    def train(
        self, seed: int, dropped: Sequence[Facts], *, max_steps: int | None = None
    ) -> Iterator[GraphModel]:
        """Train a model for each set of dropped facts, and yield it in evaluation mode."""
        config = self._configured(seed, max_steps)
        if self.why_one_at_a_time:
            for facts in dropped:
                yield self._train_one(config, facts)
            return
        for start in range(0, len(dropped), STACK_SIZE):
            yield from train_stack(self.graph, config, dropped[start : start + STACK_SIZE])

    def _configured(self, seed: int, max_steps: int | None) -> RunConfig:
        """Return the run's configuration without settings that do not affect its parameters."""
        content = self.config.model_dump(mode="json")
        limits = [n for n in (max_steps, self.config.training.max_steps) if n is not None]
        content["training"] |= {
            "seed": seed,
            "max_steps": min(limits, default=None),
            "ema_decay": None,
            "checkpoint_frequency": 0,
            "checkpoint_every_steps": None,
        }
        content["evaluation"]["enabled"] = False
        content["optimizations"]["torch_compile"] = False
        content["tracking"] |= {"log_checkpoints": False, "profile_steps": 0}
        return RunConfig.model_validate(content)

    def _train_one(self, config: RunConfig, facts: Facts) -> GraphModel:
        task = WithoutFacts(self.graph, config, facts)
        with working_folder("retraining") as folder:
            trainer = build_trainer(
                config,
                task,
                Tracker(),
                device=self.device,
                world=World(),
                folder=folder,
                origin=self.origin,
            )
            trainer.train()
        assert isinstance(trainer.model, GraphModel)
        return trainer.model.eval()


class KeptRetrainings:
    """Results of each retraining for the test triples, in the files of a folder.

    Args:
        folder: Folder of the files; it is created with the first file.
        identity: Identity of the data, the configuration and the test triples.
    """

    def __init__(self, folder: Path, identity: str) -> None:
        self.folder, self.identity = folder, json.dumps(identity)
        stated = folder / IDENTITY_FILE
        if stated.is_file():
            if stated.read_bytes() != self.identity.encode():
                raise ConfigError(
                    f"--output-dir {folder}: contains retrainings of another model, other data or "
                    "other test triples; give another folder"
                )
        elif folder.is_dir() and any(path.suffix != ".tmp" for path in folder.iterdir()):
            raise ConfigError(f"--output-dir {folder}: contains other files; give a new folder")

    def __contains__(self, retraining: Retraining) -> bool:
        return self._path(retraining).is_file()

    def write(self, retraining: Retraining, outcomes: Outcomes) -> None:
        """Write the results of a retraining, completely or not at all."""
        write_whole(self.folder / IDENTITY_FILE, self.identity)
        with replacing(self._path(retraining)) as temporary, temporary.open("wb") as file:
            np.savez(file, **{name: getattr(outcomes, name) for name in FIELDS})

    def read(self, retraining: Retraining) -> Outcomes:
        try:
            with (
                self._path(retraining).open("rb") as file,
                np.load(file, allow_pickle=False) as stored,
            ):
                return Outcomes(*(stored[name] for name in FIELDS))
        except Exception as error:  # damaged zip files and NumPy headers raise many error types
            raise DataError(
                f"{self._path(retraining)}: cannot be read ({described(error)}); delete it to "
                "train that model again"
            ) from None

    def _path(self, retraining: Retraining) -> Path:
        return self.folder / f"{retraining.key}.npz"


def train_missing(
    retrainings: Sequence[Retraining],
    folder: KeptRetrainings,
    retrainer: Retrainer,
    examiner: Examiner,
    progress: Callable[[int, int], None],
) -> None:
    """Train the models that are not in the folder yet, the models of one seed together."""
    distinct = {retraining.key: retraining for retraining in retrainings}
    missing = [retraining for retraining in distinct.values() if retraining not in folder]
    done = len(distinct) - len(missing)
    progress(done, len(distinct))
    by_seed = attrgetter("seed")
    for seed, group in groupby(sorted(missing, key=by_seed), by_seed):
        waiting = list(group)
        models = retrainer.train(seed, [retraining.dropped for retraining in waiting])
        for retraining, model in zip(waiting, models, strict=True):
            folder.write(retraining, examiner.examine(model))
            done += 1
            progress(done, len(distinct))
