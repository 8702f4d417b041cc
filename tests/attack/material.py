"""Small files of every kind that Clew reads, written by its own commands."""

import contextlib
import io
import shutil
from dataclasses import dataclass
from pathlib import Path

import yaml

from clew.__main__ import run
from tests.image_sequences.sequence_files import sequence_columns
from tests.recorded import UMLS, run_id_in
from tests.workflows.trained import sequence_config, text_config

SPLITS = {"train": 200, "valid": 20, "test": 20}
QUESTION = "acquired_abnormality,location_of,experimental_model_of_disease"


@dataclass(frozen=True)
class Material:
    """A folder with files of every kind, and the runs that wrote them."""

    folder: Path
    graph_run: str
    text_run: str
    frames_run: str
    trace_run: str

    @property
    def graph(self) -> Path:
        """Triples, dictionaries and labels."""
        return self.folder / "graph"

    @property
    def checkpoint(self) -> Path:
        """The last checkpoint of the graph's training."""
        return self.folder / "kept/checkpoints/epoch-0002"

    @property
    def report(self) -> Path:
        """An explanation in three files."""
        return self.folder / "influence"

    def model(self, kind: str) -> Path:
        """Return the served model folder `graph`, `text` or `frames`."""
        return self.folder / "models" / kind


def clew(*arguments: object) -> str:
    """Run a command, and return the id of the run that it prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        ended = run([str(argument) for argument in arguments])
    assert ended == 0, arguments
    return run_id_in(printed.getvalue())


def make_material(folder: Path) -> dict[str, str]:
    """Train a model of each kind, explain one, promote all, and return the runs of `Material`."""
    write_graph(folder / "graph")
    common = ("training.device=cpu", "tracking.log_mfu=false", "training.checkpoint_frequency=1")
    small = (
        "--embedding-dim=16",
        "--output-channels=4",
        "--num-epochs=2",
        "training.ema_decay=0.5",
    )
    files = [f"--{split}={folder}/graph/{split}.txt" for split in SPLITS]
    graph = clew("train", *files, *small, *common, f"--checkpoint-dir={folder}/kept")
    question = (f"--test={folder}/graph/test.txt", f"--output={folder}/influence", "--top-k=5")
    trace = clew("tracin", f"--model={graph}", *question)

    (folder / "text").mkdir()
    configs = {
        "text": text_config(folder / "text"),
        "frames": sequence_config(folder / "frames", sequence_columns()),
    }
    runs = {"graph": graph}
    for kind, config in configs.items():
        path = folder / f"{kind}.yaml"
        path.write_text(yaml.safe_dump(config.model_dump(mode="json")), encoding="utf-8")
        runs[kind] = clew("train", f"--config={path}")
    clew("trace-text", f"--model={runs['text']}", "--prompt=3 green", "--continuation= bottles",
         f"--output={folder}/text.json")  # fmt: skip
    taken: set[Path] = set()
    for kind, run_id in runs.items():
        clew("promote", f"--run-id={run_id}", f"--name={kind}", "--force=to be attacked")
        served = {
            manifest.parent
            for manifest in folder.glob("mlartifacts/**/artifacts/model/manifest.json")
        }
        (new,) = served - taken
        taken.add(new)
        shutil.copytree(new, folder / "models" / kind)
    return {f"{kind}_run": run_id for kind, run_id in (runs | {"trace": trace}).items()}


def write_graph(folder: Path) -> None:
    """Write the first facts of UMLS with dictionaries, labels and a list of wrong facts."""
    folder.mkdir()
    kept = {}
    for split, size in SPLITS.items():
        kept[split] = (UMLS / f"{split}.txt").read_text(encoding="utf-8").splitlines()[:size]
        (folder / f"{split}.txt").write_text("\n".join(kept[split]) + "\n", encoding="utf-8")
    triples = [line.split("\t") for lines in kept.values() for line in lines]
    entities = sorted({name for head, _, tail in triples for name in (head, tail)})
    relations = sorted({relation for _, relation, _ in triples})
    tables = {
        "entities.tsv": [f"{name}\t{number}" for number, name in enumerate(entities)],
        "relations.tsv": [f"{name}\t{number}" for number, name in enumerate(relations)],
        "names.tsv": [f"{name}\t{name.title()}" for name in entities],
        "wrong.txt": kept["train"][:5],
    }
    for name, lines in tables.items():
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
