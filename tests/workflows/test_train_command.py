"""`clew train` as users type it, on a real SQLite store: recorded data, and every mistake."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pytest
from mlflow import MlflowClient
from safetensors.torch import load_file

from clew.__main__ import run as run_command

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "experiments" / "link_prediction" / "umls.yaml"
SMALL = [
    "model.embedding_dim=16",
    "model.output_channels=4",
    "training.num_epochs=2",
    "training.checkpoint_frequency=1",
    "training.device=cpu",
    "training.num_threads=1",
    "training.log_every_steps=10",
]


class Done(NamedTuple):
    returncode: int
    stderr: str


Clew = Callable[..., Done]


@pytest.fixture
def store(tracking_store: Path) -> Path:
    return tracking_store / "mlflow.db"


@pytest.fixture
def clew(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Clew:
    """Return a function that runs the command line in this process, to avoid slow imports."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Done:
        code = run_command(list(arguments))
        return Done(code, capsys.readouterr().err)

    return run


def clew_environment(store: Path) -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW_", "CLEW_"))}
    return inherited | {
        "PYTHONPATH": f"{ROOT / 'platform'}:{ROOT}",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_TRACKING_URI": f"sqlite:///{store}",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }


def runs_in(store: Path) -> list[Any]:
    if not store.exists():
        return []
    client = MlflowClient(tracking_uri=f"sqlite:///{store}")
    experiments = [e.experiment_id for e in client.search_experiments()]
    return list(client.search_runs(experiments, order_by=["attributes.start_time ASC"]))


def artifacts_of(store: Path, run_id: str, folder: str = "") -> set[str]:
    client = MlflowClient(tracking_uri=f"sqlite:///{store}")
    return {item.path for item in client.list_artifacts(run_id, folder)}


def parameters_in(checkpoint: Path) -> int:
    """Return how many trained numbers a checkpoint contains, without moving statistics."""
    tensors = load_file(checkpoint / "model.safetensors")
    statistics = ("running_mean", "running_var", "num_batches_tracked")
    return sum(t.numel() for name, t in tensors.items() if not name.endswith(statistics))


def test_a_run_holds_all_that_the_contract_names(clew: Clew, store: Path, tmp_path: Path) -> None:
    done = clew(
        "train", "--config", str(CONFIG), "--use-mixed-precision", "--output-dir", "out", *SMALL
    )
    assert done.returncode == 0, done.stderr
    (run,) = runs_in(store)
    assert run.info.status == "FINISHED"
    tags = run.data.tags
    assert tags["clew.kind"] == "train"
    assert tags["clew.task"] == "link_prediction"
    assert tags["clew.dataset"] == "umls"
    assert tags["clew.variant"] == "bf16"
    assert tags["clew.device"] == "cpu"
    assert len(tags["clew.config_hash"]) == 12
    assert tags["clew.data_fingerprint"]
    assert int(tags["clew.parameters"]) == parameters_in(tmp_path / "out" / "best")
    parameters = run.data.params
    assert parameters["cfg.optimizations.use_mixed_precision"] == "true"
    assert parameters["cfg.optimizations.enable_memory_cleanup"] == "true"
    assert parameters["cfg.model.embedding_dim"] == "16"
    metrics = run.data.metrics
    for split in ("valid", "test"):
        for name in ("mrr", "hits_at_1", "hits_at_3", "hits_at_10", "mean_rank"):
            assert f"{split}/{name}" in metrics
    for name in (
        "train/loss", "train/epoch", "train/learning_rate", "train/grad_norm", "time/epoch_seconds",
        "time/step_milliseconds", "time/data_milliseconds", "time/total_seconds",
        "throughput/examples_per_second", "memory/process_peak_gib",
    ):  # fmt: skip
        assert name in metrics, name
    assert artifacts_of(store, run.info.run_id) >= {
        "config.yaml", "config.json", "checkpoints", "best", "history.parquet", "vocabulary",
    }  # fmt: skip
    assert artifacts_of(store, run.info.run_id, "checkpoints") == {
        "checkpoints/epoch-0001", "checkpoints/epoch-0002",
    }  # fmt: skip
    assert "checkpoints/epoch-0002/model.safetensors" in artifacts_of(
        store, run.info.run_id, "checkpoints/epoch-0002"
    )
    optimizations = json.loads((tmp_path / "out" / "config.json").read_text())["optimizations"]
    assert optimizations["use_mixed_precision"] is True
    assert optimizations["use_gradient_checkpointing"] is False
    history = pd.read_parquet(tmp_path / "out" / "history.parquet")
    assert set(history["key"]) >= {"train/loss", "valid/mrr", "time/epoch_seconds"}
    data = run.inputs.dataset_inputs[0].dataset
    assert data.name == "umls"
    assert "5,216 triples to train" in json.loads(data.profile)["sizes"]
    columns = json.loads(data.schema)["mlflow_colspec"]
    assert [column["name"] for column in columns] == ["head", "relation", "tail"]


def test_the_resolved_configuration_repeats_the_run(
    clew: Clew, store: Path, tmp_path: Path
) -> None:
    assert clew("train", "--config", str(CONFIG), "--output-dir", "first", *SMALL).returncode == 0
    again = clew("train", "--config", "first/config.yaml", "--output-dir", "second")
    assert again.returncode == 0, again.stderr
    first, second = runs_in(store)
    assert first.data.tags["clew.config_hash"] == second.data.tags["clew.config_hash"]
    for name in ("train/loss", "valid/mrr", "test/mrr"):
        assert first.data.metrics[name] == second.data.metrics[name], name
    one = (tmp_path / "first" / "best" / "model.safetensors").read_bytes()
    assert one == (tmp_path / "second" / "best" / "model.safetensors").read_bytes()


def write_graph(folder: Path, **files: str | bytes) -> None:
    triples = "\n".join(f"a{i % 7}\tr{i % 3}\tb{i % 5}" for i in range(40))
    defaults: dict[str, str | bytes] = {"train": triples + "\n", "valid": "a1\tr1\tb1\n"}
    for name, content in (defaults | {"test": "a2\tr2\tb2\n"} | files).items():
        data = content if isinstance(content, bytes) else content.encode()
        (folder / f"{name}.txt").write_bytes(data)


OWN_FILES = ["--train", "train.txt", "--valid", "valid.txt", "--test", "test.txt"]
DICTIONARIES = ["--entity-to-id", "entities.txt", "--relation-to-id", "relations.txt"]
ENTITIES = "".join(
    f"{name}\t{i}\n"
    for i, name in enumerate([*(f"a{n}" for n in range(7)), *(f"b{n}" for n in range(5))])
)
RELATIONS = "r0\t0\nr1\t1\nr2\t2\n"


def test_own_files_with_dictionaries(clew: Clew, store: Path, tmp_path: Path) -> None:
    write_graph(tmp_path, entities=ENTITIES, relations=RELATIONS)
    done = clew("train", "--config", str(CONFIG), *OWN_FILES, *DICTIONARIES, *SMALL)
    assert done.returncode == 0, done.stderr
    (run,) = runs_in(store)
    assert run.data.params["cfg.data.train"] == "train.txt"
    assert run.data.params["cfg.data.name"] in ("", "null", "None")


@pytest.mark.parametrize(
    ("arguments", "files", "message"),
    [
        (["--train", "nowhere.txt", "--valid", "valid.txt"], {}, "nowhere.txt"),
        (OWN_FILES, {"train": ""}, "train.txt"),
        (OWN_FILES[:2], {}, "is true; give data.valid, a file of triples, or set"),
        (OWN_FILES, {"train": "a\tr\tb\na\tr\n"}, "train.txt, line 2"),
        (OWN_FILES, {"valid": b"a0\tr0\tb\xff\n"}, "valid.txt, line 1"),
        ([*OWN_FILES, *DICTIONARIES], {"test": "a0\tr0\tnobody\n"}, "nobody"),
        ([*OWN_FILES, *DICTIONARIES], {"entities": ENTITIES + "c\t0\n"}, "entities.txt, line 13"),
        (["model.embedding_dim=37", "model.embedding_height=5"], {}, "embedding_dim is 37"),
        (["model.kernel_width=50"], {}, "is larger than the image"),
        (["training.epochs=3"], {}, "training.epochs: unknown key"),
        (["loss.function=hinge"], {}, "loss.function: 'hinge' given"),
        (["--use-mixed-precision=maybe"], {}, "'maybe' given, expected true or false"),
        (["--num-epochs", "abc"], {}, "'abc' given, expected a whole number"),
        (["--bacth-size", "5"], {}, "No such option '--bacth-size'"),
        (["training.device=cuda"], {}, "torch sees no GPU"),
        (["--resume", "0" * 32], {}, "0" * 32),
        (["--output-dir", "."], {}, "exists and is not empty"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_exit_2_and_leaves_no_run(
    clew: Clew,
    store: Path,
    tmp_path: Path,
    arguments: list[str],
    files: dict[str, Any],
    message: str,
) -> None:
    write_graph(tmp_path, **{"entities": ENTITIES, "relations": RELATIONS} | files)
    base = [] if "--resume" in arguments else ["--config", str(CONFIG)]
    code, printed = clew("train", *base, *arguments)
    assert code == 2, printed
    errors = [line for line in printed.splitlines() if line.startswith("clew: error:")]
    assert len(errors) == 1
    assert message in errors[0]
    assert "Traceback" not in printed
    assert not runs_in(store)


def test_an_unreachable_server_is_one_line(clew: Clew, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    code, printed = clew("train", "--config", str(CONFIG), *SMALL)
    assert code == 2, printed
    assert "127.0.0.1:9" in printed.splitlines()[-1]
    assert "Traceback" not in printed


def test_a_log_level_that_is_none_is_one_line(store: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "clew", "--version"],
        env=clew_environment(store) | {"CLEW_LOG_LEVEL": "banana"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("clew: error: CLEW_LOG_LEVEL is 'banana'; expected DEBUG, INFO, WARNING")


def test_a_folder_that_was_removed_is_one_line(store: Path, tmp_path: Path) -> None:
    command = 'cd "$1" && rmdir "$1" && exec "$2" -m clew --help'
    gone = tmp_path / "gone"
    gone.mkdir()
    done = subprocess.run(
        ["sh", "-c", command, "sh", str(gone), sys.executable],
        env=clew_environment(store),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("clew: error: the current folder does not exist")


@pytest.mark.slow
def test_of_two_processes_one_speaks_and_records(store: Path, tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    rendezvous = ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"]
    command = ["-m", "clew", "train", "--config", str(CONFIG), *SMALL]
    done = subprocess.run(
        [*torchrun, *rendezvous, *command],
        cwd=tmp_path,
        env=clew_environment(store),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (run,) = runs_in(store)
    assert [line for line in done.stdout.splitlines() if line.startswith("run ")] == [
        f"run {run.info.run_id}  fp32"
    ]
    assert done.stderr.count("valid/mrr 0.") == 1


AT_A_STEP = """
import os, signal, sys
from clew.__main__ import main
from clew.training.trainer import Trainer

step, signal_name, wanted = Trainer._step, sys.argv.pop(1), int(sys.argv.pop(1))

def then_signalled(trainer, window):
    step(trainer, window)
    if trainer.progress.step == wanted:
        os.kill(os.getpid(), signal.Signals[signal_name])

Trainer._step = then_signalled
main()
"""


def train_until(
    step: int, signum: signal.Signals, settings: list[str], store: Path
) -> "subprocess.CompletedProcess[str]":
    """Train in a process that gets a signal after its first step."""
    command = ["train", "--config", str(CONFIG), *settings]
    return subprocess.run(
        [sys.executable, "-c", AT_A_STEP, signum.name, str(step), *command],
        cwd=store.parent,
        env=clew_environment(store),
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_killed_and_resumed_equals_uninterrupted(clew: Clew, store: Path, tmp_path: Path) -> None:
    settings = [*SMALL, "training.num_epochs=8", "training.batch_size=64"]
    whole = clew("train", "--config", str(CONFIG), "--output-dir", "whole", *settings)
    assert whole.returncode == 0, whole.stderr
    middle_of_the_fourth_epoch = 85
    done = train_until(middle_of_the_fourth_epoch, signal.SIGKILL, settings, store)
    assert done.returncode == -signal.SIGKILL, done.stderr
    killed = next(r for r in runs_in(store) if r.info.status == "RUNNING")
    resumed = clew("train", "--resume", killed.info.run_id, "--output-dir", "resumed")
    assert resumed.returncode == 0, resumed.stderr
    for name in ("best/model.safetensors", "checkpoints/epoch-0008/model.safetensors"):
        one, two = (tmp_path / run / name for run in ("whole", "resumed"))
        assert one.read_bytes() == two.read_bytes(), name
    last = runs_in(store)[-1]
    assert last.data.tags["clew.resumed_from"] == killed.info.run_id
    assert artifacts_of(store, last.info.run_id, "checkpoints") == {
        f"checkpoints/epoch-{epoch:04d}" for epoch in range(1, 9)
    }
    statuses = {r.info.run_id: r.info.status for r in runs_in(store)}
    assert statuses[killed.info.run_id] == "KILLED"


def test_resuming_with_other_data_or_another_model_is_refused(
    clew: Clew, store: Path, tmp_path: Path
) -> None:
    write_graph(tmp_path, entities=ENTITIES, relations=RELATIONS)
    assert clew("train", "--config", str(CONFIG), *OWN_FILES, *SMALL).returncode == 0
    (run,) = runs_in(store)
    other_model = clew("train", "--resume", run.info.run_id, "model.embedding_dim=32")
    assert other_model.returncode == 2
    assert "model.embedding_dim: run" in other_model.stderr
    other_metric = clew("train", "--resume", run.info.run_id, "evaluation.metric=valid/mean_rank")
    assert other_metric.returncode == 2
    assert "evaluation.metric: run" in other_metric.stderr
    (tmp_path / "train.txt").write_text("a1\tr1\tb1\nb1\tr0\ta2\na2\tr2\tb2\n")
    other_data = clew("train", "--resume", run.info.run_id, "training.num_epochs=4")
    assert other_data.returncode == 2
    assert "fingerprint" in other_data.stderr
    assert [r.info.status for r in runs_in(store)] == ["FINISHED"]


@pytest.mark.slow
def test_ctrl_c_keeps_a_checkpoint_and_exits_130(store: Path) -> None:
    settings = [*SMALL, "training.num_epochs=500", "training.checkpoint_frequency=0"]
    done = train_until(20, signal.SIGINT, settings, store)
    assert done.returncode == 130, done.stderr
    (run,) = runs_in(store)
    assert run.info.status == "KILLED"
    checkpoints = artifacts_of(store, run.info.run_id, "checkpoints")
    assert checkpoints == {"checkpoints/step-00000020"}
    assert f"--resume {run.info.run_id}" in done.stderr


def test_settings_may_come_as_one_comma_separated_list(clew: Clew, store: Path) -> None:
    done = clew(
        "train", "--config", str(CONFIG), "--set", ",".join(SMALL), "--disable-memory-cleanup"
    )
    assert done.returncode == 0, done.stderr
    (run,) = runs_in(store)
    assert run.data.params["cfg.model.embedding_dim"] == "16"
    assert run.data.tags["clew.variant"] == "fp32-cleanup"
