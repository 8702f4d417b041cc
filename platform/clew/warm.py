"""The work of the dashboard's jobs; this module is imported once, by the process that forks them.

A new Python process spends seconds on importing torch and MLflow; a fork spends none. The process
that imports this module never computes and starts no threads: a fork has only its main thread.
"""

import gc
import json
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from clew.processes import collect_garbage_rarely
from clew.runs.hardware import prepare_threads

collect_garbage_rarely()
prepare_threads(os.environ)  # before torch is imported

# ruff: noqa: E402
import torch._dynamo  # noqa: F401 - recomputed activations and plans import it

from clew.__main__ import ended_by
from clew.config.load import from_mapping
from clew.language_modeling.model import Sampling
from clew.runs.mlflow_store import preload_databases
from clew.ui import work
from clew.workflows.explaining.trace_source import open_trace_source
from clew.workflows.explaining.tracin import tracin
from clew.workflows.predict import asked as query
from clew.workflows.predict import predict
from clew.workflows.predict_windows import TextRequest, predict_frames, predict_text
from clew.workflows.promote import PromotionRequest, promote, rollback
from clew.workflows.train import train
from clew.workflows.verify import VerifyRequest, verify

preload_databases()
gc.freeze()  # else a collection in a fork copies all of this memory

Say = Callable[[str], None]


def run(asked: object, folder: Path) -> int:
    """Do what is asked, and return the exit code that the command line would have.

    Results are lines in the file `stdout` of the folder, messages go to standard error.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)  # so that a run is closed
    sys.argv = ["clew"]
    sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8", closefd=False)
    shown = logging.StreamHandler(sys.stderr)
    shown.setFormatter(logging.Formatter("clew: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[shown], force=True)
    logging.getLogger("clew").setLevel(logging.INFO)
    with (folder / "stdout").open("w", encoding="utf-8", buffering=1) as file:

        def say(text: str) -> None:
            file.write(text)
            file.flush()

        try:
            perform(asked, folder, say)
        except (Exception, KeyboardInterrupt) as error:
            if (code := ended_by(error)) is None:
                traceback.print_exc()
            return 1 if code is None else code
    return 0


def perform(asked: object, folder: Path, say: Say) -> None:
    """Call the function of a workflow, and say its results."""

    def tell(content: object) -> None:
        say(json.dumps(content) + "\n")

    def progress(done: int, total: int) -> None:
        tell({"done": done, "total": total})

    match asked:
        case work.Question():
            asking, most = [query(asked.head, asked.relation, asked.tail)], work.NUM_ASKED
            tell(predict(asked.model, asking, top_k=most, level=asked.level, apart=True).as_dict())
        case work.AskedText():
            sampling = Sampling(asked.temperature, top_p=asked.top_p)
            request = TextRequest(asked.prompt, asked.max_tokens, sampling, asked.seed)
            for piece in predict_text(asked.model, request):
                say(piece)
        case work.AskedFrames():
            frames, output = folder / asked.path, folder / work.PREDICTIONS_FILE
            predicted = predict_frames(asked.model, frames, output, confidence=asked.confidence)
            tell(predicted.as_dict())
        case work.Why():
            triple = (asked.head, asked.relation, asked.tail)
            first = None if asked.score else folder / work.FIRST_ANSWER_FILE
            how: dict[str, str] = {"influence.direction": asked.end}
            how |= {"influence.score": asked.score} if asked.score else {}
            result = tracin(asked.model, [triple], how, first_answer=first, progress=progress)
            tell(result.as_dict())
        case work.Check():
            verify(VerifyRequest(asked.run_id, triple=asked.triple), progress=progress)
        case work.Preparation():
            with open_trace_source(asked.model, {}) as source:
                source.tracer.prepare()
        case work.Promotion():
            made = promote(PromotionRequest(**vars(asked)), lambda check: tell(asdict(check)))
            tell({"result": made.as_dict()})
        case work.Rollback():
            tell({"result": rollback(asked.name).as_dict()})
        case work.Training():
            tell({"run_id": train(from_mapping(asked.config)).run_id})
        case _:
            raise TypeError(f"no work is known for {type(asked).__name__}")
