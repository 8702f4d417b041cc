"""The options with which a command works on a cluster."""

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from clew.cli.options import Options

if TYPE_CHECKING:
    from clew.workflows.clusters.nodes import ClusterRequest


class ClusterOptions(Options):
    """Options that `clew compare`, `clew tune` and `clew batch-tracin` share."""

    cluster: str = ""
    """Work on a cluster of Ray: HOST:PORT of its head, auto for the one that runs here, or local to
    start one here (default: in this process)."""
    cpus_per_task: Annotated[float, Field(gt=0)] = 1.0
    """With --cluster: processor cores for each task (a cell, a trial or some test triples)."""
    gpus_per_task: Annotated[float | None, Field(ge=0)] = None
    """With --cluster: GPUs for each task (default: 1 if the cluster has GPUs, else 0)."""
    memory_gib_per_task: Annotated[float | None, Field(gt=0)] = None
    """With --cluster: memory to reserve for each task (default: none)."""

    def cluster_request(self) -> "ClusterRequest | None":
        """Return the cluster that was asked for."""
        from clew.workflows.clusters.nodes import ClusterRequest

        if not self.cluster:
            return None
        return ClusterRequest(
            self.cluster, self.cpus_per_task, self.gpus_per_task, self.memory_gib_per_task
        )
