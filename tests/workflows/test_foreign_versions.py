"""Others may write to the registry: what they wrote is neither run nor promoted."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from mlflow import MlflowClient

from clew import names
from clew.errors import PromotionRefused
from clew.runs.base import RegisteredVersion
from clew.runs.registry import Registry
from clew.training.checkpoints import weights_digest
from clew.workflows.model_source import open_version
from clew.workflows.open_run import SERVED_FOLDER, find_version
from tests.edited import edit_weights
from tests.workflows.test_promote import Crown, aliases, champion, promoted, small_package
from tests.workflows.trained import TrainedStore

__all__ = ["champion", "small_package"]

Change = Callable[[Path], object]
"""Changes the folder of a version."""


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """Return the path of a file that the code of others writes when it is run."""
    return tmp_path / "written"


@pytest.fixture(params=["code", "weights"])
def change(request: pytest.FixtureRequest, written: Path) -> Change:
    def code(folder: Path) -> None:
        with (folder / "serving.py").open("a", encoding="utf-8") as file:
            file.write(f"\nPath({str(written)!r}).write_text('run')\n")

    def weights(folder: Path) -> None:
        def negate(tensors: dict[str, torch.Tensor]) -> None:
            tensors["entity.weight"].neg_()

        edit_weights(folder / SERVED_FOLDER, negate)

    changes: dict[str, Change] = {"code": code, "weights": weights}
    return changes[request.param]


def digest_of_champion(name: str, folder: Path) -> str:
    return weights_digest(open_version(find_version(f"models:/{name}@champion"), folder).checkpoint)


@pytest.mark.parametrize("alias", ["", "challenger"])
def test_a_foreign_version_with_the_right_tags_is_left_alone(
    trained: TrainedStore,
    champion: Crown,
    tmp_path: Path,
    written: Path,
    change: Change,
    alias: str,
) -> None:
    registry, name = Registry(), f"prepared {tmp_path.name}"
    champion(f"own {name}", trained.strong)
    own = registry.version(f"own {name}", "1")
    folder = registry.download(own, tmp_path / "copy")
    change(folder)
    foreign = registry.register(name, folder, run_id=trained.strong, tags=own.tags)
    if alias:
        registry.set_alias(name, alias, foreign.number)
    number = promoted(name, trained.strong)
    assert not written.exists()
    assert number == "2"
    assert aliases(name)["champion"] == "2"
    assert digest_of_champion(name, tmp_path / "crowned") == own.tags[names.TAG_WEIGHTS]


@pytest.mark.parametrize("force", ["", "I want it"])
def test_a_version_that_others_change_after_its_upload_is_refused(
    trained: TrainedStore,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    written: Path,
    change: Change,
    force: str,
) -> None:
    client, name = MlflowClient(trained.uri), f"changed {tmp_path.name}"
    original = Registry.register

    def overwritten(self: Registry, name: str, folder: Path, **settings: Any) -> RegisteredVersion:
        version = original(self, name, folder, **settings)
        shutil.copytree(folder, tmp_path / "copy")
        change(tmp_path / "copy")
        model_id = client.get_model_version(name, version.number).source.rpartition("/")[2]
        client.log_model_artifacts(model_id, str(tmp_path / "copy"))
        return version

    monkeypatch.setattr(Registry, "register", overwritten)
    with pytest.raises(PromotionRefused):
        promoted(name, trained.strong, force=force)
    assert not written.exists()
    assert aliases(name) == {"challenger": "1"}
