"""Every command of the five guides runs as printed, with this product's verbs.

The command lines are extracted from copies of the guides. The things that a guide assumes (its
files, a trained model) are created here in small sizes, and settings after the command make sizes
small.
"""

import ast
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
import pytest
import yaml
from mlflow import MlflowClient
from mlflow.entities import Run

from clew.__main__ import run as run_command
from clew.cli.options import flags
from clew.config.eigenstate import PRESETS
from clew.config.files import presets
from clew.config.load import from_mapping
from clew.runs import store
from clew.training.checkpointing import Checkpointer
from tests.workflows.guide_commands import Block, Command, blocks, commands, lines_of

pytestmark = pytest.mark.slow

OURS: dict[str, list[str]] = {
    "python train_pytorch.py": ["train"],
    "python run_tracin.py": ["tracin"],
    "python batch_tracin_with_filtering.py": ["batch-tracin"],
    "python examples/train_digitalocean.py": ["train"],
    "python -m torch.utils.bottleneck examples/train_digitalocean.py": [
        "train", "tracking.profile_steps=1",
    ],
    "python main.py": ["train"],
    "python scripts/pretokenize_and_pack.py": ["pretokenize"],
    "bash scripts/train_small_32k.sh": ["train", "--config", "small_32k"],
    "bash scripts/train_medium_32k.sh": ["train", "--config", "medium_32k"],
}  # fmt: skip
"""The commands that started the older code, and the verbs that replace them."""
OPTIONS_ALONE = {
    "1-training": ["train"],
    "2-tracin": ["tracin"],
    "5-image-sequences": ["train", "--config", "configs/colab_optimized_full.yaml"],
}
"""The command that a guide means when it prints only options."""
APART = {
    "tensorboard --logdir runs/": "test_tensorboard_shows_a_run",
    "torchrun --nproc_per_node=4": "test_train_command: of two processes one speaks and records",
}
"""Programs of other projects that read or start Clew, with the test of each."""
NOT_OURS = {
    "nvidia-smi": "shows the graphics card; comes with its driver",
    "pip install --upgrade torch": "torch comes with the environment, in a pinned version",
    "git pull origin main": "updates a checkout",
    "export": "settings of torch and CUDA, which the commands below run with",
    "python test/test_efficient_loss.py": "a test of the older code; here tests/oracles",
}
WITHOUT_COMMANDS = {
    "python": "the inside of the older code; here the trainer does it from the configuration",
    "": "a formula, a printed result or a table",
    "json": "a run's config.json: test_the_options_are_in_config_json",
    "yaml": "a configuration: test_a_configuration_of_the_guides_is_accepted",
}
"""Maps the language of a block to the reason why the block contains no command."""

GRAPH_FILES = {
    "--train": "train.txt",
    "--valid": "valid.txt",
    "--test": "test.txt",
    "--entity-to-id": "node_dict.txt",
    "--relation-to-id": "rel_dict.txt",
}
MODEL_FILES = {"--model-path": "model.pt", **GRAPH_FILES}
PLACEHOLDERS = {
    "train": GRAPH_FILES,
    "tracin": {name: MODEL_FILES[name] for name in MODEL_FILES if name != "--valid"},
    "batch-tracin": {
        "--test-triples": "test_triples.txt",
        "--output-dir": "results/",
        **{name: MODEL_FILES[name] for name in MODEL_FILES if name not in ("--valid", "--test")},
    },
}
"""The values that replace `...`."""

ANY_MODEL = {"training.device": "cpu", "training.max_steps": "3", "tracking.log_mfu": "false"}
SMALL = {
    "graph": {"model.embedding_dim": "16", "model.output_channels": "4"},
    "text": {
        "model.d_model": "16",
        "model.n_layers": "1",
        "model.num_eigenstates": "8",
        "model.num_gates": "4",
        "model.num_heads": "2",
        "model.chunk_size": "16",
        "model.max_seq_len": "64",
        "training.checkpoint_every_steps": "1",
        "training.num_workers": "0",
        "training.persistent_workers": "false",
        "training.prefetch_factor": "null",
        "training.multiprocessing_context": "null",
    },
    # Compiling for a CPU takes minutes; tests/training/test_compilation.py tests it.
    "frames": {"model.channels": "[8,16]", "optimizations.torch_compile": "false"},
}


def verb_of(command: Command) -> list[str] | None:
    """Return Clew's words for the start of a command, or None for another program's command."""
    if command.line.startswith("--"):
        return OPTIONS_ALONE[command.guide]
    return next((ours for start, ours in OURS.items() if begins(command.line, start)), None)


def begins(line: str, start: str) -> bool:
    return f"{line} ".startswith(f"{start} ")


def our_words(command: Command, folder: Path) -> list[str]:
    """Return the command with Clew's verb and replaced placeholders, otherwise as printed."""
    start = next((start for start in OURS if begins(command.line, start)), "")
    verb = verb_of(command)
    assert verb is not None
    printed = [
        word.replace("/path/to", str(folder))
        for word in command.words[len(start.split()) :]
        if word != "..."
    ]
    files = PLACEHOLDERS.get(verb[0], {}) if command.guide[0] in "123" else {}
    left_out = [w for pair in files.items() if pair[0] not in printed for w in pair]
    return [*verb, *left_out, *printed]


def small(words: list[str], kind: str) -> list[str]:
    """Return settings for small sizes, without those that the command itself sets."""
    given = {f.key for f in flags("train") if f"--{f.name.replace('_', '-')}" in words}
    settings = ANY_MODEL | SMALL[kind]
    return [f"{key}={value}" for key, value in settings.items() if key not in given]


def kind_of(command: Command) -> str:
    return {"4": "text", "5": "frames"}.get(command.guide[0], "graph")


RUNNABLE = [command for command in commands() if verb_of(command) is not None]
TRAININGS = [c for c in RUNNABLE if (verb_of(c) or [])[0] == "train" and "--resume" not in c.words]
EXPLANATIONS = [c for c in RUNNABLE if (verb_of(c) or [])[0] in ("tracin", "batch-tracin")]


@dataclass(frozen=True)
class Shell:
    """A folder with the things that the guides assume, and a store; commands run in it."""

    folder: Path

    def __call__(self, *words: str) -> Run:
        """Run a command that must succeed, and return the newest run."""
        assert run_command(list(words)) == 0, " ".join(words)
        return self.runs()[0]

    def runs(self) -> list[Run]:
        client = MlflowClient(store.tracking_uri())
        found = [e.experiment_id for e in client.search_experiments()]
        return list(client.search_runs(found, order_by=["attributes.start_time DESC"]))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with every file that the guides name."""
    folder = tmp_path_factory.mktemp("files")
    graph = {
        "train": [(f"a{i % 7}", f"r{i % 3}", f"b{i % 5}") for i in range(60)],
        "valid": [("a1", "r1", "b1"), ("a2", "r0", "b3")],
        "test": [("a2", "r2", "b2"), ("a0", "r1", "b4")],
    }
    texts = {
        name: "".join("\t".join(row) + "\n" for row in dict.fromkeys(rows))
        for name, rows in graph.items()
    }
    entities = [*(f"a{n}" for n in range(7)), *(f"b{n}" for n in range(5))]
    texts["node_dict"] = "".join(f"{name}\t{i}\n" for i, name in enumerate(entities))
    texts["rel_dict"] = "r0\t0\nr1\t1\nr2\t2\n"
    texts["test_triples"] = texts["test"]
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    (folder / "data").mkdir()
    renamed = {"node_dict": "entity2id", "rel_dict": "relation2id"}
    for name, text in texts.items():
        (folder / "data" / f"{renamed.get(name, name)}.txt").write_text(text, encoding="utf-8")
    write_frames(folder / "data" / "image_sequences.h5")
    (folder / "corpora" / "finewebedu").mkdir(parents=True)
    words = np.random.default_rng(0).choice(["time", "light", "stone", "water"], 4000)
    (folder / "corpora" / "finewebedu" / "part.txt").write_text(" ".join(words), encoding="utf-8")
    return folder


def write_frames(path: Path) -> None:
    generator, count = np.random.default_rng(0), 36
    level = np.sin(np.arange(count) / 5)
    with h5py.File(path, "w") as file:
        images = level[:, None, None] + generator.normal(size=(count, 12, 16))
        file["images"] = images.astype(np.float32)
        file["target"] = 3 + level
        file["group"] = np.repeat(["one", "two", "three"], count // 3).astype("S")
        file["time"] = np.tile(np.arange(count // 3, dtype=float), 3)


@pytest.fixture
def shell(
    files: Path, tmp_path: Path, tracking_store: Path, monkeypatch: pytest.MonkeyPatch
) -> Shell:
    folder = tmp_path / "work"
    shutil.copytree(files, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("CLEW_DATA", str(folder / "corpora"))
    for command in commands():
        if command.words[0] == "export":
            name, _, value = command.words[1].partition("=")
            monkeypatch.setenv(name, value)
    return Shell(folder)


@pytest.fixture(scope="module")
def model(files: Path, store_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the `--output-dir` of a model that was trained on the guides' files."""
    folder = tmp_path_factory.mktemp("model")
    shutil.copyfile(store_template, folder / "mlflow.db")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(files)
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder / 'mlflow.db'}")
        words = ["train", *(word for pair in GRAPH_FILES.items() for word in pair)]
        words += ["--output-dir", str(folder / "conve")]
        assert run_command([*words, *small(words, "graph"), "training.max_steps=2"]) == 0
    return folder / "conve"


def prepare(command: Command, shell: Shell, model: Path) -> None:
    """Create what a command needs and earlier commands of its guide would have created."""
    if command in EXPLANATIONS:
        shutil.copytree(model, "model.pt")
        shutil.copytree(model, "models/conve")
    if command.guide[0] == "4":
        shell_words = next(our_words(c, shell.folder) for c in RUNNABLE if "--dataset" in c.words)
        assert run_command(shell_words) == 0


def check_settings(run: Run, words: list[str]) -> None:
    """Check that the run's parameters contain every option of a command as printed."""
    verb = words[0].replace("-", "_")
    for item in flags(verb):
        spellings = {f"--{item.name}", f"--{item.name.replace('_', '-')}"} & {*words}
        for spelling in spellings:
            if item.switch:
                assert run.data.params[f"cfg.{item.key}"] == item.switch
                continue
            last = len(words) - 1 - words[::-1].index(spelling)
            following = words[last + 1] if last + 1 < len(words) else "--"
            printed = "true" if following.startswith("--") or "=" in following else following
            assert run.data.params[f"cfg.{item.key}"] == printed, spelling


@pytest.mark.parametrize("block", blocks(), ids=str)
def test_every_block_holds_known_commands_or_a_reason_why_not(block: Block) -> None:
    for line in lines_of(block):
        command = Command(block.guide, line)
        known = [start for start in (*OURS, *APART, *NOT_OURS) if begins(line, start)]
        assert known or line.startswith("--"), f"{command}: no verb and no reason"
    if block.language != "bash":
        assert block.language in WITHOUT_COMMANDS


def test_no_verb_and_no_reason_is_left_over() -> None:
    lines = [command.line for command in commands()]
    for start in (*OURS, *APART, *NOT_OURS):
        assert any(begins(line, start) for line in lines), f"no guide prints {start}"


# torch warns about more workers than cores; the third guide uses eight.
@pytest.mark.filterwarnings("ignore:This DataLoader will create 8 worker processes:UserWarning")
@pytest.mark.parametrize("command", TRAININGS, ids=str)
def test_a_training_runs(command: Command, shell: Shell, model: Path) -> None:
    prepare(command, shell, model)
    words = our_words(command, shell.folder)
    run = shell(*words, *small(words, kind_of(command)))
    assert run.info.status == "FINISHED"
    check_settings(run, words)


@pytest.mark.parametrize("command", EXPLANATIONS, ids=str)
def test_an_explanation_runs(command: Command, shell: Shell, model: Path) -> None:
    prepare(command, shell, model)
    words = our_words(command, shell.folder)
    run = shell(*words)
    assert run.data.tags["clew.kind"] == "trace"
    check_settings(run, words)
    for option in ("--output", "--output-dir"):
        if option in words:
            written = shell.folder / words[words.index(option) + 1]
            assert written.is_file() or any(written.iterdir())


def test_text_is_packed(shell: Shell) -> None:
    (command,) = [c for c in RUNNABLE if "--dataset" in c.words]
    assert run_command(our_words(command, shell.folder)) == 0
    manifest = json.loads((shell.folder / "packed" / "manifest.json").read_text())
    assert manifest["chunk_size"] == 32768


def interrupted_after_one_checkpoint(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a training that is stopped when it writes its second checkpoint."""
    write, calls = Checkpointer.write, []

    def write_once(self: Checkpointer, *arguments: object, **named: object) -> None:
        calls.append(self)
        if len(calls) > 1:
            raise KeyboardInterrupt
        write(self, *arguments, **named)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Checkpointer, "write", write_once)
        assert run_command(words) == 130


def test_an_interrupted_training_goes_on(
    shell: Shell, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (command,) = [c for c in RUNNABLE if "--resume" in c.words]
    prepare(command, shell, model)
    words = our_words(command, shell.folder)
    sizes = small(words, kind_of(command))
    begun = [word for word in words if word != "--resume"]
    interrupted_after_one_checkpoint([*begun, *sizes], monkeypatch)
    (stopped,) = shell.runs()
    assert stopped.info.status == "KILLED"
    run = shell(*words, *sizes)
    assert run.info.status == "FINISHED"
    assert run.data.tags["clew.resumed_from"] == stopped.info.run_id
    kept = list((shell.folder / "checkpoints" / "checkpoints").iterdir())
    steps = {json.loads((path / "manifest.json").read_text())["step"] for path in kept}
    assert steps == {1, 2, 3}


def test_tensorboard_shows_a_run(shell: Shell, model: Path) -> None:
    training = next(c for c in TRAININGS if c.line == "bash scripts/train_small_32k.sh")
    prepare(training, shell, model)
    words = our_words(training, shell.folder)
    shell(*words, *small(words, "text"))
    for command in (c for c in commands() if c.words[0] == "tensorboard"):
        # `--inspect` prints what the server would show, and exits.
        shown = subprocess.run(
            [sys.executable, "-m", "tensorboard.main", *command.words[1:], "--inspect"],
            cwd=shell.folder, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert "train/loss" in shown.stdout


def test_the_options_are_in_config_json(shell: Shell, model: Path) -> None:
    (block,) = [block for block in blocks() if block.language == "json"]
    command = TRAININGS[0]
    words = our_words(command, shell.folder)
    shell(*words, *small(words, "graph"))
    written = json.loads((shell.folder / "models" / "conve" / "config.json").read_text())
    printed = json.loads(block.text)["optimizations"]
    assert printed.items() <= written["optimizations"].items()


@pytest.mark.parametrize("block", [b for b in blocks() if b.language == "yaml"], ids=str)
def test_a_configuration_of_the_guides_is_accepted(block: Block) -> None:
    config = from_mapping(yaml.safe_load(block.text) | {"data": {"path": "frames.h5"}})
    assert config.data.kind == "image_sequences"


def test_the_preset_of_the_guide_has_its_sizes() -> None:
    (block,) = [b for b in blocks() if "CONFIGS = {" in b.text]
    sizes = ast.literal_eval(block.text.partition("CONFIGS = ")[2])["small_32k"]
    model = {key: value for key, value in sizes.items() if key in PRESETS["small_32k"]}
    assert model.items() <= PRESETS["small_32k"].items()
    config = from_mapping(yaml.safe_load(presets()["small_32k"].read_text(encoding="utf-8")))
    assert config.training.batch_size == sizes["batch_size"]
    assert config.training.gradient_accumulation == sizes["gradient_accumulation"]
    assert config.optimizations.use_gradient_checkpointing == sizes["use_gradient_checkpointing"]
    assert {"small_32k", "medium_32k", "large_32k"} <= presets().keys()
