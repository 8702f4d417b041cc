"""A study's cells on a cluster: each is a unit of work, with a process of its own on its node."""

from collections.abc import Iterator, Sequence

from clew.config.study import Study
from clew.errors import Interrupted
from clew.runs.hardware import git_commit
from clew.workflows.clusters.cluster import Cluster
from clew.workflows.studies.cells import CellResult, run_cell, trained_model
from clew.workflows.studies.report import in_words
from clew.workflows.tasks import data_fingerprint


def cells_on_cluster(
    cluster: Cluster, study: Study, turns: Sequence[tuple[int, str]], parent: str | None
) -> Iterator[CellResult]:
    """Yield the cells as they end; one that is lost with node after node is a result too.

    Args:
        cluster: Where they run.
        study: Of which they are.
        turns: Seed and variant of each.
        parent: Run of the study.

    Raises:
        ClusterError: the nodes have other data than this machine.
        Interrupted: stopped by the person.
    """
    cluster.require_same("the data", fingerprints, study)
    place = f"{in_words(cluster.machines)}/{git_commit()}"
    if study.command == "tracin":  # cells of one seed beside each other would all train its model
        for seed in study.seeds:
            cluster.submit(seed, trained_model, study, seed, parent, place)
        for _ in cluster.finished():
            pass  # a model that could not be trained is tried again by its cells, which say why
    for seed, variant in turns:
        cluster.submit((seed, variant), run_cell, study, variant, seed, parent, place)
    for (seed, variant), ended in cluster.finished():
        if isinstance(ended.error, Interrupted):
            raise ended.error
        cell: CellResult | None = ended.result
        yield cell or CellResult(variant, seed, None, problem=str(ended.error))


def fingerprints(study: Study) -> str:
    """Return what the data of all cells are, as this machine has them."""
    configs = [study.config(variant, study.seeds[0]) for variant in study.variants]
    different = {config.data.model_dump_json(): config for config in configs}
    return ", ".join(data_fingerprint(config) for config in different.values())
