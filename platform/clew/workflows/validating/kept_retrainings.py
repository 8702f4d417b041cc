"""Finished retrainings on the disk, one file each: a killed command goes on where it was."""

import json
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path

import numpy as np

from clew.errors import ConfigError, DataError, described
from clew.files import replacing, write_whole
from clew.validation.experiment import Retraining
from clew.validation.outcomes import Examiner, Outcomes
from clew.validation.retraining import Retrainer

IDENTITY_FILE = "identity.json"
FIELDS = ("loss", "log_probability", "rank")


class KeptRetrainings:
    """What each retraining said of the test triples.

    Args:
        folder: Where the files are; it is made with the first of them.
        identity: What all of them depend on: data, configuration, test triples.

    Raises:
        ConfigError: the folder holds retrainings of something else.
    """

    def __init__(self, folder: Path, identity: str) -> None:
        self.folder, self.identity = folder, json.dumps(identity)
        stated = folder / IDENTITY_FILE
        if stated.is_file():
            if stated.read_bytes() != self.identity.encode():
                raise ConfigError(
                    f"--output-dir {folder}: holds retrainings of another model, data or choice of "
                    "test triples; name another folder"
                )
        elif folder.is_dir() and any(path.suffix != ".tmp" for path in folder.iterdir()):
            raise ConfigError(f"--output-dir {folder}: holds other files; name a new folder")

    def __contains__(self, retraining: Retraining) -> bool:
        return self._path(retraining).is_file()

    def write(self, retraining: Retraining, outcomes: Outcomes) -> None:
        """Keep a retraining, whole or not at all."""
        write_whole(self.folder / IDENTITY_FILE, self.identity)
        with replacing(self._path(retraining)) as temporary, temporary.open("wb") as file:
            np.savez(file, **{name: getattr(outcomes, name) for name in FIELDS})

    def read(self, retraining: Retraining) -> Outcomes:
        """Return a finished retraining.

        Raises:
            DataError: its file cannot be read.
        """
        try:
            with (
                self._path(retraining).open("rb") as file,
                np.load(file, allow_pickle=False) as stored,
            ):
                return Outcomes(*(stored[name] for name in FIELDS))
        except Exception as error:  # zip files and NumPy's headers raise nearly everything
            raise DataError(
                f"{self._path(retraining)}: cannot be read ({described(error)}); delete it, and "
                "the command trains that model again"
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
    """Train what is not there yet, the models of one seed together."""
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
