"""Lists runs of the tracking store, so that a person finds the id of the one that is wanted."""

from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from clew import names
from clew.runs.reading.metrics import headline_key, number_text
from clew.runs.reading.runs import RunRecord, state_of
from clew.runs.reading.search import RunQuery, experiment_id_of, search_runs


@dataclass(frozen=True)
class ListedRun:
    """What the list says of a run."""

    run_id: str
    kind: str
    state: str
    data: str
    variant: str
    quality: str
    """Last value of the main metric of its task, with the metric's name."""
    started: str
    """In UTC."""
    name: str


@dataclass(frozen=True)
class RunList:
    """Some runs, the latest first; `more` says whether the store has others like them."""

    runs: tuple[ListedRun, ...]
    more: bool

    def table(self) -> str:
        """Return the runs, one per line under the names of the columns."""
        if not self.runs:
            return "no such run"
        rows = [asdict(run) for run in self.runs]
        lines = [[key.replace("_", " ") for key in rows[0]], *(list(row.values()) for row in rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        shown = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
        note = ["there are more; --limit shows more of them"] if self.more else []
        return "\n".join([*shown, *note])


def list_runs(*, kind: str = "", experiment: str = "", limit: int = 20) -> RunList:
    """Return the latest runs.

    Args:
        kind: Of the runs, such as `train` or `trace`; empty for all.
        experiment: Its runs alone; empty for all.
        limit: How many at most.

    Raises:
        TrackingError: there is no such experiment, no store, or it does not answer.
    """
    ids = (experiment_id_of(experiment),) if experiment else ()
    page = search_runs(RunQuery(ids, kind=kind), limit=limit)
    return RunList(tuple(map(_listed, page.runs)), page.more)


def _listed(run: RunRecord) -> ListedRun:
    key = headline_key(run)
    value = run.metrics.get(key)
    return ListedRun(
        run.run_id,
        run.tags.get(names.TAG_KIND, ""),
        state_of(run),
        run.tags.get(names.TAG_DATASET, ""),
        run.tags.get(names.TAG_VARIANT, ""),
        "" if value is None else f"{key} {number_text(value)}",
        datetime.fromtimestamp(run.started_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M"),
        run.name,
    )
