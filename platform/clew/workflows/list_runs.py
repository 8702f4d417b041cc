"""Lists the latest runs of the tracking store with their ids."""

from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from clew import names
from clew.errors import printable
from clew.runs.reading.metrics import headline_key, number_text, value_at_best
from clew.runs.reading.runs import RunRecord, state_of
from clew.runs.reading.search import RunQuery, experiment_id_of, search_runs


@dataclass(frozen=True)
class ListedRun:
    """One line of the list of runs."""

    run_id: str
    kind: str
    state: str
    data: str
    variant: str
    quality: str
    """Name of the task's main metric, and its value at the best checkpoint."""
    started: str
    """In UTC."""
    name: str


@dataclass(frozen=True)
class RunList:
    """Runs, the latest first; `more` is true if the store has more runs that match."""

    runs: tuple[ListedRun, ...]
    more: bool

    def table(self) -> str:
        """Return a header and one line per run."""
        if not self.runs:
            return "no such run"
        rows = [asdict(run) for run in self.runs]
        lines = [
            [key.replace("_", " ") for key in rows[0]],
            *(list(map(printable, row.values())) for row in rows),
        ]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        shown = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
        note = ["there are more; --limit shows more of them"] if self.more else []
        return "\n".join([*shown, *note])


def list_runs(*, kind: str = "", experiment: str = "", limit: int = 20) -> RunList:
    """Return the latest runs."""
    ids = (experiment_id_of(experiment),) if experiment else ()
    page = search_runs(RunQuery(ids, kind=kind), limit=limit)
    return RunList(tuple(map(_listed, page.runs)), page.more)


def _listed(run: RunRecord) -> ListedRun:
    key = headline_key(run)
    value = value_at_best(run, key) if key in run.metrics else None
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
