"""Asks a served graph model and a served language model with 200 clients at once.

    python -m experiments.benchmarks.serving_flood [seconds]

The servers are those of `serving_speed`, with the variables of docs/serve.md: a ConvE of
FB15k-237's sizes, and a language model of the preset nano, both with random weights. Of the
clients, 80 ask something small (one query with ten answers; eight tokens) and pause two seconds, 40
ask something large (1,000 queries; 2,000 tokens), 40 send a request too slowly to finish it, and 40
ask something large and leave after a fifth of a second. A client that is told to come again waits
as long as it is told. Afterwards a single client leaves in the middle of a large request; the
processor time that the server uses two seconds later is measured for five seconds.
"""

import asyncio
import json
import logging
import os
import random
import re
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from clew.config.eigenstate import EigenstateLMModel
from clew.config.load import from_mapping
from clew.files import write_json
from clew.language_modeling.model import EigenstateLM
from clew.language_modeling.packed_tokens import PackManifest
from clew.language_modeling.tokenizers import BYTES, ByteTokenizer
from clew.runs.registry import save_servable
from clew.training.checkpoints import write_checkpoint
from clew.training.manifest import Manifest
from clew.workflows import gate
from clew.workflows.subjects import SUBJECTS
from experiments.benchmarks.harness import print_table, write_results
from experiments.benchmarks.serving_speed import make_model, random_rows, served

SECONDS = 30.0
CLIENTS = {"small": 80, "large": 40, "slow": 40, "leaving": 40}
PAUSE_SECONDS, LEAVE_SECONDS = 2.0, 0.2
WANTED_SECONDS = 2.0
VARIABLES = {"UVICORN_TIMEOUT_GRACEFUL_SHUTDOWN": "8", "UVICORN_LIMIT_CONCURRENCY": "500"}


@dataclass
class Told:
    """The answers to one kind of client: seconds until each, by status; 0 for none."""

    seconds: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))

    def row(self, model: str, kind: str) -> dict[str, object]:
        """Return a row of the table."""
        answered = self.seconds[200]
        return {
            "model": model,
            "clients": f"{CLIENTS[kind]} {kind}",
            "answers": len(answered),
            "told to come again": len(self.seconds[429]),
            "lost": sum(len(s) for status, s in self.seconds.items() if status not in {200, 429}),
            "median s": float(np.median(answered)) if answered else None,
            "longest s": max(answered, default=None),
        }


def make_text_model(folder: Path) -> Path:
    """Write a folder with a language model of random weights."""
    settings = EigenstateLMModel(preset="nano", transition="gated", convolution_width=4)
    data = {"kind": "tokens", "name": "tinyshakespeare", "tokenizer": "bytes"}
    model = {"kind": "eigenstate_lm"} | settings.model_dump(mode="json")
    config = from_mapping({"data": data, "model": model, "loss": {"kind": "language"}})
    size = ByteTokenizer.vocabulary_size
    text = PackManifest(
        "random", BYTES, "", size, size - 1, "uint16", 0, 0, 0, settings.max_seq_len, "0" * 16
    )
    manifest = Manifest(
        0, 0, 0.0, "language_modeling", config.model_dump(mode="json"), "", text.fingerprint
    )
    network = EigenstateLM(size, settings, end_of_text=text.end_of_text)
    write_checkpoint(folder / "model", network, manifest)
    write_json(folder / "model" / "tokens.json", asdict(text))
    return folder / "model"


def bodies(model: str) -> tuple[bytes, bytes]:
    """Return a small and a large request."""
    if model == "graph":
        source = random.Random(0)
        small, large = ({"dataframe_records": random_rows(n, source)} for n in (1, 1000))
    else:
        row: dict[str, Any] = {"dataframe_records": [{"prompt": "What is it, my lord"}]}
        small, large = (row | {"params": {"max_tokens": n}} for n in (8, 2000))
    return json.dumps(small).encode(), json.dumps(large).encode()


async def ask(port: int, body: bytes, kind: str = "") -> tuple[int, float]:
    """Send a request, and return the status of its answer (0: none) and when to come again."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = "POST /invocations HTTP/1.1\r\nHost: here\r\nConnection: close\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode())
        if kind == "slow":
            for byte in body[:60]:
                writer.write(bytes([byte]))
                await asyncio.sleep(1)
        else:
            writer.write(body)
        if kind == "leaving":
            await asyncio.sleep(LEAVE_SECONDS)
            writer.close()
            return 0, PAUSE_SECONDS
        answer = (await reader.read()).decode("latin-1")
        writer.close()
    except OSError:
        return 0, PAUSE_SECONDS
    status = answer.split(maxsplit=2)[1:2]
    told = re.search(r"^retry-after: (\d+)", answer, re.MULTILINE | re.IGNORECASE)
    return int(status[0]) if status else 0, float(told[1]) if told else PAUSE_SECONDS


async def client(port: int, kind: str, body: bytes, until: float, told: Told) -> None:
    """Ask again and again, as a client of a kind does."""
    await asyncio.sleep(random.uniform(0, PAUSE_SECONDS))
    while time.monotonic() < until:
        began = time.monotonic()
        status, pause = await ask(port, body, kind)
        told.seconds[status].append(time.monotonic() - began)
        await asyncio.sleep(pause)


async def flood(port: int, model: str, seconds: float) -> dict[str, Told]:
    """Let all clients ask for a while, and return what each kind was told."""
    small, large = bodies(model)
    assert (await ask(port, small))[0] == 200
    until, told = time.monotonic() + seconds, {kind: Told() for kind in CLIENTS}
    clients = [
        asyncio.create_task(
            client(port, kind, small if kind == "small" else large, until, told[kind])
        )
        for kind, number in CLIENTS.items()
        for _ in range(number)
    ]
    await asyncio.wait(clients, timeout=seconds + 60)
    for each in clients:
        each.cancel()
    return told


async def seconds_after_leaving(port: int, model: str, leader: int) -> float:
    """Return the processor time of the server from two to seven seconds after a client left."""
    await ask(port, bodies(model)[1], "leaving")
    await asyncio.sleep(WANTED_SECONDS)
    before = processor_seconds(leader)
    await asyncio.sleep(5)
    return processor_seconds(leader) - before


def processor_seconds(leader: int) -> float:
    """Return the processor time that a process and its children have used so far."""
    found = psutil.Process(leader)
    times = [each.cpu_times() for each in (found, *found.children(recursive=True))]
    return float(sum(each.user + each.system for each in times))


@contextmanager
def server(model: str, work: Path) -> Iterator[tuple[int, int]]:
    """Serve a model; yield its port and the server's process."""
    work.mkdir()
    (work / "copies").mkdir()
    folder = make_model(work) if model == "graph" else make_text_model(work)
    example = json.loads(bodies(model)[0])["dataframe_records"][0]
    servable = save_servable(
        work / "servable",
        subject=SUBJECTS["triples" if model == "graph" else "tokens"],
        code=Path(gate.__file__).with_name("serving.py"),
        model_folder=folder,
        work=work / "copies",
        example=example,
    )
    with served(servable, work) as found:
        yield found


def main() -> None:
    """Flood both servers, and print and write the figures."""
    # asyncio warns of each write to a client that has left; leaving is what some are here for.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS
    os.environ |= VARIABLES
    rows: list[dict[str, object]] = []
    figures: dict[str, list[float]] = {}
    for model in ("graph", "language"):
        with (
            tempfile.TemporaryDirectory(prefix="clew-flood-") as folder,
            server(model, Path(folder) / model) as (port, leader),
        ):
            told = asyncio.run(flood(port, model, seconds))
            after = asyncio.run(seconds_after_leaving(port, model, leader))
        rows += [each.row(model, kind) for kind, each in told.items()]
        small = told["small"].seconds
        asked = sum(map(len, small.values()))
        in_time = sum(each <= WANTED_SECONDS for each in small[200])
        figures |= {
            f"{model}, small requests answered": [len(small[200]) / asked],
            f"{model}, small requests answered within 2 s": [in_time / asked],
            f"{model}, processor s for a client that left": [after],
        }
    print_table(rows)
    for name, values in figures.items():
        print(f"{name}: {values[0]:.3g}")
    write_results("serving_flood", {"rows": rows, "seconds": seconds}, figures=figures)


if __name__ == "__main__":
    main()
