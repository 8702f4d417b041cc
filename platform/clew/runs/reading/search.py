"""Searches runs page by page, so that a large store is as fast as a small one.

The tracking server filters, sorts and limits the results, so this module only reads the runs that
are shown. MLflow's client has no call for the number of runs or the values of a tag. For a
database, this module queries MLflow's tables. For a server, it finds the number of runs by testing
which offsets are past the end, starting near the previous number.

What a person types becomes a condition in MLflow's filter language: `embedding_dim=400 mrr>0.9
data:umls` means that all three must hold. A part without a sign is part of a run's name, or a run's
whole id.
"""

import json
import logging
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import LifecycleStage
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID
from mlflow.utils.search_utils import SearchUtils
from pydantic import TypeAdapter, ValidationError

from clew import names
from clew.config.load import SHORT_KEYS
from clew.config.schema import section_classes
from clew.errors import TrackingError, UsageError, similar_name, valid_names
from clew.runs import store
from clew.runs.reading.runs import RunRecord, client, database_of, record_of

logger = logging.getLogger(__name__)

MAX_IDS_PER_FILTER = 50
EXPERIMENTS_PER_PAGE, RUNS_PER_PAGE, NEWEST_PER_PAGE = 500, 100, 5
TAGS = {"data": names.TAG_DATASET, "parent": MLFLOW_PARENT_RUN_ID, "note": names.TAG_NOTE}
"""Tags that have another name here; `variant` is `clew.variant`, and `user` is `mlflow.user`."""
STATES = {"running": "RUNNING", "finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}
SPLITS = ("valid", "test", "train")
"""Of metrics with the same last part, `mrr` means that of the first of these."""

_WORDS = re.compile(r'(?:"[^"]*"|\S)+')
_PART = re.compile(r'([^\s:=<>!"]+)(<=|>=|!=|[:=<>])(.+)', re.DOTALL)


@dataclass(frozen=True)
class RunQuery:
    """Conditions on runs and their order; an empty field does not restrict the result."""

    experiment_ids: tuple[str, ...] = ()
    text: str = ""
    """What a person typed."""
    kind: str = ""
    task: str = ""
    config_hash: str = ""
    status: str = ""
    """MLflow's status: RUNNING, FINISHED, FAILED, KILLED or SCHEDULED."""
    source_run: str = ""
    parent_run: str = ""
    resumed_from: str = ""
    cell: str = ""
    """Cell of a study."""
    reviewed: bool = False
    """Whether to return only runs with a review."""
    order_by: str = "attributes.start_time DESC"


@dataclass(frozen=True)
class Keys:
    """The names of what the runs of a store recorded."""

    metrics: frozenset[str]
    params: frozenset[str]
    tags: frozenset[str]


@dataclass(frozen=True)
class RunPage:
    """Runs starting at `offset`; `more` says whether other runs follow."""

    runs: tuple[RunRecord, ...]
    offset: int
    more: bool


def list_experiments(connected: MlflowClient | None = None) -> dict[str, str]:
    """Return the ids of the active experiments by their names, the latest first."""
    found: dict[str, str] = {}
    token: str | None = None
    with store.using("the list of experiments"):
        connected = connected or client()
        while True:
            page = connected.search_experiments(max_results=EXPERIMENTS_PER_PAGE, page_token=token)
            found |= {each.name: str(each.experiment_id) for each in page}
            if not (token := page.token):
                return found


def experiment_id_of(name: str) -> str:
    known = list_experiments()
    if name not in known:
        there = ", ".join(map(repr, known)) or "none"
        raise TrackingError(f"no experiment {name!r}; there are {there}")
    return known[name]


def search_runs(query: RunQuery, *, offset: int = 0, limit: int = 50) -> RunPage:
    with store.using("the list of runs"):
        connected = client()
        ids, text = experiment_ids_of(connected, query), filter_string(query)
        order, token = [query.order_by], page_token(offset)
        found = connected.search_runs(
            ids, text, max_results=limit, order_by=order, page_token=token
        )
    return RunPage(tuple(record_of(run) for run in found), offset, bool(found.token))


def every_run(query: RunQuery, size: int = RUNS_PER_PAGE) -> Iterator[RunRecord]:
    """Yield all matching runs; pages of this size are read one after the other when needed."""
    offset, more = 0, True
    while more:
        page = search_runs(query, offset=offset, limit=size)
        yield from page.runs
        offset, more = offset + len(page.runs), page.more


def find_runs(run_ids: Sequence[str]) -> list[RunRecord]:
    """Return the runs with these ids in this order, without deleted and unknown runs."""
    wanted = [run_id for run_id in dict.fromkeys(run_ids) if re.fullmatch(r"\w{1,64}", run_id)]
    found: dict[str, RunRecord] = {}
    with store.using("the chosen runs"):
        connected = client()
        experiments = experiment_ids_of(connected, RunQuery())
        for first in range(0, len(wanted), MAX_IDS_PER_FILTER):
            ids = ", ".join(f"'{run_id}'" for run_id in wanted[first : first + MAX_IDS_PER_FILTER])
            chosen = f"attributes.run_id IN ({ids})"
            page = connected.search_runs(experiments, chosen, max_results=MAX_IDS_PER_FILTER)
            found |= {run.info.run_id: record_of(run) for run in page}
    return [found[run_id] for run_id in wanted if run_id in found]


def find_cell(cell_id: str) -> RunRecord | None:
    """Return the newest finished run of a study's cell, with which the study can continue."""
    return next(iter(search_runs(RunQuery(cell=cell_id, status="FINISHED"), limit=1).runs), None)


def run_meant(reference: str, kind: str) -> str:
    """Return a run reference, with `newest` replaced by the id of the run that finished last.

    A run that was trained with another seed for an explanation is not meant.
    """
    if reference != names.NEWEST:
        return reference
    query = RunQuery(kind=kind, status="FINISHED", order_by="attributes.end_time DESC")
    latest = every_run(query, size=NEWEST_PER_PAGE)
    run = next((run for run in latest if names.TAG_MEMBER_OF not in run.tags), None)
    if run is None:
        raise TrackingError(
            f"{names.NEWEST!r} means the {kind} run that finished last, but no {kind} run in "
            f"{store.in_use()} has finished; `clew runs` lists the existing runs"
        )
    logger.info("%s is run %s (%s)", names.NEWEST, run.run_id, run.name)
    return run.run_id


def filter_string(query: RunQuery) -> str:
    """Return a query's conditions in MLflow's filter language.

    Raises:
        UsageError: A part of what a person typed cannot be understood.
    """
    tags = {
        names.TAG_KIND: query.kind,
        names.TAG_TASK: query.task,
        names.TAG_CONFIG_HASH: query.config_hash,
        names.TAG_SOURCE_RUN: query.source_run,
        MLFLOW_PARENT_RUN_ID: query.parent_run,
        names.TAG_RESUMED_FROM: query.resumed_from,
        names.TAG_CELL: query.cell,
        names.TAG_REVIEWED: "true" if query.reviewed else "",
    }
    clauses = [f"tags.`{key}` = {quoted(value)}" for key, value in tags.items() if value]
    if query.status:
        clauses.append(f"attributes.status = {quoted(query.status)}")
    clauses += [_clause(part) for part in _WORDS.findall(query.text)]
    return " AND ".join(clauses)


def experiment_ids_of(connected: MlflowClient, query: RunQuery) -> list[str]:
    """Return the ids of a query's experiments, or of all experiments if the query names none."""
    return list(query.experiment_ids) or list(list_experiments(connected).values())


def page_token(offset: int) -> str | None:
    if offset == 0:
        return None
    return str(SearchUtils.create_page_token(offset).decode())  # type: ignore[no-untyped-call]


def count_runs(query: RunQuery, *, near: int = 0) -> int:
    """Return the number of matching runs.

    If the store has no query for it, the number is found by doubling and then halving the offset of
    a page with one run. This needs two searches with a good guess `near`, and without one about
    two searches for each power of two.
    """
    with store.using("the number of runs"):
        connected = client()
        ids, text = experiment_ids_of(connected, query), filter_string(query)
        base = database_of(connected)
        if base is not None and text == filter_string(RunQuery(status=query.status)):
            from mlflow.store.tracking.dbmodels.models import SqlRun
            from sqlalchemy import func

            wanted: list[Any] = [SqlRun.lifecycle_stage == LifecycleStage.ACTIVE]
            wanted += [SqlRun.status == query.status] if query.status else []
            wanted += [SqlRun.experiment_id.in_(map(int, ids))]
            with base.ManagedSessionMaker() as session:
                return int(session.query(func.count(SqlRun.run_uuid)).filter(*wanted).scalar())

        def reaches(offset: int) -> bool:
            token = page_token(offset)
            return len(connected.search_runs(ids, text, max_results=1, page_token=token)) > 0

        return first_unreached(reaches, near)


def first_unreached(reaches: Callable[[int], bool], near: int = 0) -> int:
    """Return the smallest offset for which `reaches` is False; it must be False for all larger.

    The search starts at the guess `near` and doubles its steps until it has passed the end in one
    direction; then it bisects.
    """
    reached, beyond, step = near - 1, near, 1 if near else 64
    if near and not reaches(reached):
        reached, beyond = near - 2, near - 1
        while reached >= 0 and not reaches(reached):
            reached, beyond, step = max(reached - step, -1), reached, 2 * step
    else:
        while reaches(beyond):
            reached, beyond, step = beyond, beyond + step, 2 * step
    return bisect_left(range(beyond), True, reached + 1, key=lambda offset: not reaches(offset))


def known_keys() -> Keys:
    """Return the names of what the runs of the store recorded; of a server, its latest runs."""
    with store.using("the names of metrics and settings"):
        connected = client()
        base = database_of(connected)
        if base is None:
            ids = experiment_ids_of(connected, RunQuery())
            found = connected.search_runs(ids, max_results=RUNS_PER_PAGE)
            parts = ("metrics", "params", "tags")
            return Keys(*(frozenset(k for r in found for k in getattr(r.data, p)) for p in parts))
        from mlflow.store.tracking.dbmodels.models import SqlLatestMetric, SqlParam, SqlTag

        with base.ManagedSessionMaker() as session:
            keys = (session.query(table.key) for table in (SqlLatestMetric, SqlParam, SqlTag))
            return Keys(*(frozenset(key for (key,) in each.distinct()) for each in keys))


def quoted(text: str) -> str:
    """Return a string literal for MLflow's filter language, which cannot escape quotes."""
    return '"' + text.replace('"', "_") + '"' if "'" in text else f"'{text}'"


def _clause(part: str) -> str:
    """Return the condition of a part of what a person typed."""
    split, plain = _PART.fullmatch(part), part.replace('"', "")
    if split is None:
        if re.fullmatch(r"[0-9a-f]{32}", plain):
            return f"attributes.run_id = '{plain}'"
        return f"attributes.run_name ILIKE {quoted(f'%{plain}%')}"
    name, sign, value = split[1], split[2], split[3].replace('"', "")
    if name == "state":
        if value not in STATES or sign not in ":=":
            raise UsageError(f"{plain}: {valid_names(value, list(STATES))}")
        return f"attributes.status = '{STATES[value]}'"
    kind, key = ("tags", TAGS[name]) if name in TAGS else _meaning(name, known_keys())
    place = f"{kind}.`{key}`"
    if kind == "metrics":
        if not re.fullmatch(r"-?(\d{1,20}\.?\d*|\.\d+)(e[+-]?\d\d?)?", value):
            raise UsageError(f"{plain}: a metric is compared with a number, such as 0.9")
        return f"{place} {sign.replace(':', '=')} {float(value):.17f}"
    if sign in (">", "<", ">=", "<="):
        raise UsageError(f"{plain}: {name} is kept as text and has no order; use =, != or :")
    if sign == ":":
        return f"{place} ILIKE {quoted(f'%{value}%')}"
    return f"{place} {sign} {quoted(_recorded(key, value) if kind == 'params' else value)}"


def _meaning(name: str, keys: Keys) -> tuple[str, str]:
    """Return whether a name is that of `metrics`, `params` or `tags`, and the whole name."""
    kind, _, rest = name.partition(".")
    if kind in vars(keys) and rest and "`" not in rest:  # MLflow cannot quote it
        return kind, rest
    short = name.replace("-", "_")
    setting = names.PARAMETER_PREFIX + SHORT_KEYS.get(short, short)
    settings = [key for key in keys.params if key.startswith(names.PARAMETER_PREFIX)]
    splits = [key for split in SPLITS if (key := f"{split}/{name}") in keys.metrics]
    for where, found in (
        ("tags", {f"clew.{name}"} & keys.tags),
        ("params", {setting} & keys.params),
        ("params", {key for key in settings if key.endswith(f".{short}")}),
        ("metrics", {name} & keys.metrics),
        ("metrics", set(splits[:1])),
        ("metrics", {key for key in keys.metrics if key.endswith(f"/{name}")}),
        ("tags", {name, f"mlflow.{name}"} & keys.tags),
        ("params", {name} & keys.params),
    ):
        if len(found) > 1:
            raise UsageError(f"{name} means {' or '.join(sorted(found))}; write one of them")
        if found:
            return where, found.pop()
    every = {re.split(r"[./]", key)[-1] for key in keys.metrics | keys.params | keys.tags}
    near = [key for key in sorted(every) if short in key] or [short]
    said = f"no run has a setting, metric or tag {name!r}"
    question = similar_name(near[0], sorted(every))
    raise UsageError("; ".join(filter(None, (said, "names of runs go in quotes", question))))


def _recorded(key: str, value: str) -> str:
    """Return a setting's value as a run records it: `1e-3` as `0.001`."""
    section, _, name = key.removeprefix(names.PARAMETER_PREFIX).partition(".")
    for owner in section_classes(section) if key.startswith(names.PARAMETER_PREFIX) else []:
        if name in owner.model_fields:
            try:
                field: Any = owner.model_fields[name].annotation
                read = TypeAdapter(field).validate_python(value)
            except ValidationError:
                continue
            return read if isinstance(read, str) else json.dumps(read)
    return value
