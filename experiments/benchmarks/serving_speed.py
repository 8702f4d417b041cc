"""Measures the queries per second of a served model with FB15k-237's sizes, in batches of 64.

    python -m experiments.benchmarks.serving_speed [requests]

The model is a ConvE with random weights (14,541 entities, 237 relations and their inverses, 200
dimensions) and with the same number of random known triples as FB15k-237. It is packaged as
`clew promote` does, and served by `mlflow models serve --env-manager local`. One client sends head
and tail queries over HTTP, with ten answers each, probabilities, and marks of known answers. In the
same run, three other ways take turns: MLflow's pyfunc without HTTP, the predictor alone, and HTTP
with one query per request.
"""

import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import torch

from clew.config.graph_models import ConvEModel
from clew.config.load import from_mapping
from clew.link_prediction.calibration import Calibration
from clew.link_prediction.models.conve import ConvE
from clew.link_prediction.prediction import Query
from clew.link_prediction.subject import (
    ENTITIES_FILE,
    RELATIONS_FILE,
    load_predictor,
    write_model_folder,
)
from clew.link_prediction.vocabulary import Vocabulary
from clew.runs.hardware import GIB
from clew.runs.registry import save_servable
from clew.runs.store import probe
from clew.training.checkpoints import write_checkpoint
from clew.training.manifest import Manifest
from clew.workflows import gate
from clew.workflows.subjects import SUBJECTS
from experiments.benchmarks.harness import (
    interleaved_seconds,
    median,
    print_table,
    write_results,
)

NUM_ENTITIES, NUM_RELATIONS, NUM_TRIPLES = 14_541, 237, 272_115
BATCH = 64
ROUNDS = 3
GOAL_QUERIES_PER_SECOND = 300
START_SECONDS = 180.0

Row = dict[str, str]


def make_model(folder: Path) -> Path:
    """Write a model folder with random weights and random known triples."""
    config = from_mapping({"data": {"name": "umls"}})
    assert isinstance(config.model, ConvEModel)
    model = ConvE(NUM_ENTITIES, 2 * NUM_RELATIONS, config.model)
    manifest = Manifest(0, 0, 0.0, "link_prediction", config.model_dump(mode="json"), "", "")
    write_checkpoint(folder / "best", model, manifest)
    names = folder / "names"
    names.mkdir()
    entities = [f"/m/{i:06x}" for i in range(NUM_ENTITIES)]
    relations = [f"/domain/type/relation_{i}" for i in range(NUM_RELATIONS)]
    Vocabulary.from_names("entity", entities).write(names / ENTITIES_FILE)
    Vocabulary.from_names("relation", relations).write(names / RELATIONS_FILE)
    generator = np.random.default_rng(0)
    sizes = (NUM_ENTITIES, NUM_RELATIONS, NUM_ENTITIES)
    known = np.stack([generator.integers(n, size=NUM_TRIPLES, dtype=np.int32) for n in sizes], 1)
    return write_model_folder(
        folder / "model",
        checkpoint=folder / "best",
        vocabulary=names,
        known=known,
        calibration=Calibration(1.0, 1, 0.0, 0.0, 0.0, 0.0),
    )


def random_rows(num_rows: int, source: random.Random) -> list[Row]:
    """Draw random queries; about half of them ask for heads."""
    return [
        {
            source.choice(["head", "tail"]): f"/m/{source.randrange(NUM_ENTITIES):06x}",
            "relation": f"/domain/type/relation_{source.randrange(NUM_RELATIONS)}",
        }
        for _ in range(num_rows)
    ]


@contextmanager
def served(folder: Path, work: Path) -> Iterator[tuple[int, int]]:
    """Serve a saved model, and yield its port and the leader of the server's process group."""
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = int(free.getsockname()[1])
    command = [str(Path(sys.executable).with_name("mlflow")), "models", "serve", "-m", str(folder)]
    command += ["--env-manager", "local", "-p", str(port)]
    path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"
    environment = os.environ | {"PATH": path, "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false"}
    with (work / "serve.log").open("wb") as log:
        server = subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, start_new_session=True, cwd=work
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while probe(f"http://127.0.0.1:{port}") is not None:
            if time.monotonic() > deadline or server.poll() is not None:
                raise RuntimeError((work / "serve.log").read_text()[-3000:])
            time.sleep(0.2)
        yield port, server.pid
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def ask(connection: http.client.HTTPConnection, rows: list[Row]) -> list[object]:
    """Send one request over an open connection, and return its predictions."""
    body = json.dumps({"dataframe_records": rows})
    connection.request("POST", "/invocations", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    content = json.loads(response.read())
    if response.status != 200:
        raise RuntimeError(str(content)[:500])
    predictions: list[object] = content["predictions"]
    return predictions


def group_memory_gib(leader: int) -> float:
    """Return the resident size of the largest process of a process group."""
    sizes = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if os.getpgid(int(folder.name)) == leader:
                    pages = int((folder / "statm").read_text().split()[1])
                    sizes.append(pages * os.sysconf("SC_PAGE_SIZE") / GIB)
            except (OSError, ProcessLookupError):
                continue
    return max(sizes)


def measure(
    num_requests: int, work: Path
) -> tuple[list[dict[str, object]], dict[str, list[float]]]:
    """Measure all ways in turns, and return a table and the queries/s of each round."""
    model_folder = make_model(work)
    source = random.Random(0)
    example = random_rows(1, source)[0]
    (work / "copies").mkdir()
    servable = save_servable(
        work / "servable",
        subject=SUBJECTS["triples"],
        code=Path(gate.__file__).with_name("serving.py"),
        model_folder=model_folder,
        work=work / "copies",
        example=example,
    )
    predictor = load_predictor(model_folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pandas as pd
        from mlflow import pyfunc

        loaded = pyfunc.load_model(str(servable))
    with served(servable, work) as (port, leader):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        batches = iter(lambda: random_rows(BATCH, source), None)
        ways = {
            "HTTP, 64 a request": lambda: ask(connection, next(batches)),
            "HTTP, 1 a request": lambda: ask(connection, next(batches)[:1]),
            "MLflow pyfunc, 64": lambda: loaded.predict(pd.DataFrame(next(batches))),
            "predictor alone, 64": lambda: predictor.predict(
                [Query(**row) for row in next(batches)]
            ),
        }
        assert len(ask(connection, random_rows(BATCH, source))) == BATCH
        rounds = [
            interleaved_seconds(ways, repeats=num_requests, warm_ups=3) for _ in range(ROUNDS)
        ]
        memory = group_memory_gib(leader)
    rates = {
        f"{way}, queries/s": [queries_in(way) / median(times[way]) for times in rounds]
        for way in ways
    }
    seconds = {way: [second for times in rounds for second in times[way]] for way in ways}
    table: list[dict[str, object]] = [
        {
            "way": way,
            "queries/s": queries_in(way) / median(times),
            "median ms": 1000 * median(times),
            "95 % ms": 1000 * float(np.percentile(times, 95)),
            "server GiB": memory if "HTTP" in way else None,
        }
        for way, times in seconds.items()
    ]
    return table, rates


def queries_in(way: str) -> int:
    """Return the number of queries in a request of this way."""
    return 1 if "1 a request" in way else BATCH


def main() -> None:
    """Measure all ways, and print and write the figures."""
    num_requests = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    with tempfile.TemporaryDirectory(prefix="clew-serving-") as folder:
        rows, figures = measure(num_requests, Path(folder))
    print_table(rows)
    reached = float(str(rows[0]["queries/s"]))
    print(f"goal: {GOAL_QUERIES_PER_SECOND} queries/s over HTTP; reached {reached:,.0f}")
    results = {"batch": BATCH, "num_threads": torch.get_num_threads(), "rows": rows}
    packages = ("torch", "mlflow", "pandas")
    write_results("serving_speed", results, figures=figures, packages=packages)


if __name__ == "__main__":
    main()
