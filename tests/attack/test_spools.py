"""Journals that `clew sync` sends: no content of a journal blocks the messages after it."""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from clew.runs import store
from clew.runs.delivery import SyncResult, sync_spool
from clew.runs.store import connect
from tests.attack.cases import attempt, fuzz, require_one_line
from tests.attack.damage import as_json, damaged_bytes, damaged_json, texts, values
from tests.workflows.trained import copy_store, dispose_of, use_store

pytestmark = pytest.mark.slow

MESSAGES: list[dict[str, Any]] = [
    {"kind": "metrics", "values": {"train/loss": 0.5}, "step": 3, "time_ms": 5},
    {"kind": "params", "values": {"cfg.model.kind": "conve"}},
    {"kind": "tags", "values": {"clew.unit": "K"}},
    {"kind": "artifact", "staged": "files/7/log.txt", "folder": "logs"},
    {"kind": "artifact", "staged": "files/9/study", "folder": ""},
    {"kind": "checkpoint", "staged": "files/9/study", "folder": "checkpoints/epoch-0001",
     "step": 3, "metrics": {"valid/mrr": 0.5}, "metric_times_ms": {"valid/mrr": 5}},
    {"kind": "dataset", "name": "umls", "fingerprint": "0" * 16, "source": "umls",
     "context": "training"},
    {"kind": "finish", "status": "FINISHED", "time_ms": 5},
]  # fmt: skip
STAGED = (
    "files/7/..", "files/7/.", "files/7/log.txt", "files/8/gone", "files/7/" + "ä" * 200,
    "files/7/\x00", "files/" + "9" * 300 + "/a", "files/7/\x1b[2J\n", "../../private/diary.txt",
)  # fmt: skip
NUMBERS = (-(2**63) - 1, -1, 0, 2**31, 2**63 - 1, 2**63, 2**70)


@dataclass(frozen=True)
class Spool:
    """A spool folder with the journal of a run, and a private file that belongs to no run."""

    root: Path
    run_id: str

    @property
    def folder(self) -> Path:
        """The folder of the journal."""
        return self.root / self.run_id

    @property
    def private(self) -> Path:
        """A file that no journal must reach."""
        return self.root.parent / "private/diary.txt"

    def renew(self) -> None:
        """Write the files of a process that died while its server was unreachable."""
        shutil.rmtree(self.root, ignore_errors=True)
        self.folder.mkdir(parents=True, mode=0o700)
        origin = {"tracking_uri": store.tracking_uri(), "run_id": self.run_id, "experiment_id": "1"}
        (self.folder / "run.json").write_text(json.dumps(origin), encoding="utf-8")
        (self.folder / "files/9/study").mkdir(parents=True)
        (self.folder / "files/9/study/manifest.json").write_text("{}", encoding="utf-8")
        (self.folder / "files/7").mkdir()
        (self.folder / "files/7/log.txt").write_text("a line", encoding="utf-8")


@pytest.fixture
def spool(store_template: Path, tmp_path: Path) -> Iterator[Spool]:
    """Return a spool for a run without other records, in a store that no other process locks."""
    uri = copy_store(store_template, tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        use_store(patch, uri)
        client = connect(uri)
        experiment = client.create_experiment("attacked", (tmp_path / "mlartifacts/1").as_uri())
        run = client.create_run(experiment, run_name="journal")
        spool = Spool(tmp_path / "spool", run.info.run_id)
        spool.private.parent.mkdir()
        spool.private.write_text("secret", encoding="utf-8")
        yield spool
    dispose_of(uri)


def damaged_message(draw: DrawFn) -> bytes:
    """Return a line of a journal that a program, a disk or an attacker has changed."""
    message = dict(draw(st.sampled_from(MESSAGES)))
    match draw(st.integers(0, 3)):
        case 0:
            return draw(damaged_json(message)).replace(b"\n", b" ")
        case 1:
            message[draw(st.sampled_from(sorted(message)))] = draw(values)
        case 2 if "staged" in message:
            message["staged"] = draw(st.sampled_from(STAGED))
        case 2 if "values" in message:
            message["values"] = draw(st.dictionaries(texts, st.one_of(texts, values), max_size=2))
        case _:
            for key in ("step", "time_ms", "metrics", "folder"):
                if key in message:
                    message[key] = draw(st.one_of(st.sampled_from(NUMBERS), texts, values))
    return as_json(message)


def synced(spool: Spool) -> SyncResult:
    results: list[SyncResult] = []
    attempt(lambda: results.extend(sync_spool(spool.root)))
    (result,) = results
    require_one_line(result.problem or "nothing")
    assert spool.private.read_text(encoding="utf-8") == "secret"
    return result


def test_messages(spool: Spool) -> None:
    """A message that cannot be sent is put aside, and the next messages are sent."""

    def case(draw: DrawFn) -> None:
        spool.renew()
        lines = [damaged_message(draw) for _ in range(draw(st.integers(1, 2)))]
        last = as_json({"kind": "tags", "values": {"clew.unit": "K"}})
        (spool.folder / "journal.jsonl").write_bytes(b"\n".join([*lines, last]) + b"\n")
        result = synced(spool)
        assert (result.problem or "the store refused").startswith("the store refused"), result
        assert result.num_sent == len(lines) + 1

    fuzz(0.001, case)


def test_files_of_a_journal(spool: Spool) -> None:
    def case(draw: DrawFn) -> None:
        spool.renew()
        whole = b"".join(as_json(message) + b"\n" for message in MESSAGES[:3])
        (spool.folder / "journal.jsonl").write_bytes(whole)
        (spool.folder / "sent").write_bytes(b"0")
        name = draw(st.sampled_from(["run.json", "sent", "journal.jsonl", "refused.jsonl", "lock"]))
        path = spool.folder / name
        content = path.read_bytes() if path.exists() else b'{"reason": "", "message": {}}\n'
        damages: list[Callable[[], object]] = [
            lambda: path.write_bytes(draw(damaged_bytes(content))),
            path.mkdir,
            lambda: path.symlink_to(spool.private),
            lambda: path.write_bytes(draw(damaged_json(json.loads(content.splitlines()[0])))),
        ]
        if name == "run.json":
            origin = json.loads(content) | {"tracking_uri": draw(st.sampled_from(ADDRESSES))}
            damages.append(lambda: path.write_bytes(as_json(origin)))
        path.unlink(missing_ok=True)
        draw(st.sampled_from(damages))()
        if path.exists():  # without the file, it is not a journal
            synced(spool)

    fuzz(0.001, case)


ADDRESSES = (
    "", "http://[::1", "http://user:secret@host/x?token=y", "sqlite:///", "sqlite:///\x00",
    "sqlite:///" + "x" * 5_000, "file:///etc", "postgresql://\ud800", "\x1b[2J", "http://a\nb",
    "sqlite:////dev/stdin", "databricks",
)  # fmt: skip
