"""Training on packed triples equals training on their files."""

from pathlib import Path

import pytest

from clew.link_prediction.sources import BUNDLED, files_of_folder, pack_graph
from clew.runs.reading.runs import find_run
from clew.workflows.evaluate import evaluate
from clew.workflows.explaining.batch_tracin import BatchRequest, batch_tracin
from clew.workflows.train import train
from tests.workflows.trained import small_config


@pytest.fixture
def folder(tracking_store: Path, tmp_path: Path) -> Path:
    pack_graph("umls", files_of_folder(BUNDLED / "umls"), tmp_path / "packed")
    return tmp_path / "packed"


@pytest.mark.parametrize("loss", ["one_vs_all", "kvs_all"])
def test_the_numbers_are_the_same_to_the_last_digit(folder: Path, loss: str) -> None:
    def quality(**data: object) -> dict[str, float]:
        result = train(small_config(training__num_epochs=1, loss__kind=loss, **data))
        run = find_run(result.run_id or "")
        assert run.tags["clew.data_fingerprint"] == "c68b546f56cdaeed"
        quality = ("train/loss", "valid/", "test/")
        return {k: v for k, v in result.metrics.items() if k.startswith(quality)}

    plain = quality()
    assert len(plain) > 10
    assert quality(data__packed=str(folder)) == plain


def test_a_model_of_packed_triples_shuffled_in_blocks_is_evaluated_and_explained(
    folder: Path, tmp_path: Path
) -> None:
    config = small_config(
        data__packed=str(folder), training__num_epochs=1, training__shuffle_block=16
    )
    result = train(config)
    again = evaluate(result.run_id or "", "test").metrics
    assert again["test/mrr"] == result.metrics["test/mrr"] > 0.05
    request = BatchRequest(
        model=result.run_id or "",
        test_triples=str(BUNDLED / "umls/test.txt"),
        output_dir=tmp_path / "explained",
        max_triples=2,
    )
    assert batch_tracin(request).count("done") >= 1
