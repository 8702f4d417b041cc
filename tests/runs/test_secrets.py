"""Secrets are planted wherever a run takes a text, and nothing that it writes holds one."""

import logging
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from clew.__main__ import _report
from clew.config.load import load
from clew.errors import described, masked
from clew.processes import typed_command
from clew.runs.base import DataSet
from clew.runs.tracker import MlflowTracker

KINDS = (
    "postgresql://ada:{}@db/clew",
    "postgresql://ada:a/b@c{}@db/clew",
    "https://{}@github.com/ada/model",
    "redis://:{}@cache:6379",
    "https:/ada:{}@host: no such file",
    "ada:{}@db.example.org",
    "https://host/file?token={}",
    "https://host/file?a=b&password={}&c=d",
    "https://bucket/file?X-Amz-Credential={}&X-Amz-Date=1",
    "https://bucket/file?X-Amz-Signature={}",
    "https://blob/file?se=1&sig={}",
    "https://host/page#access_token={}&state=1",
    "Server=db;Database=clew;User Id=ada;Password={};",
    "DefaultEndpointsProtocol=https;AccountName=ada;AccountKey={};EndpointSuffix=x",
    "Endpoint=sb://bus/;SharedAccessKey={}",
    "host=db user=ada password={} dbname=clew",
    "host=db user=ada password='{} x' dbname=clew",
    "Driver=x;Uid=ada;Pwd={};",
    "AWS_SECRET_ACCESS_KEY={} python train.py",
    "AWS_SESSION_TOKEN={}",
    "export MLFLOW_TRACKING_PASSWORD={}",
    "MLFLOW_TRACKING_TOKEN: {}",
    "HF_TOKEN={}",
    "WANDB_API_KEY = {}",
    '{{"user": "ada", "password": "{}"}}',
    "{{'client_secret': '{}'}}",
    "api_key: {}",
    "passphrase: {}",
    "clew train --password {} epochs=1",
    "clew train --api-key={}",
    "curl -H 'Authorization: Bearer {}' https://host",
    "curl -H 'Authorization: Basic {}' https://host",
    "Cookie: session={}; theme=dark",
    "bearer {}",
    "ghp_{}",
    "github_pat_{}",
    "glpat-{}",
    "hf_{}",
    "sk-{}",
    "xoxb-1234-{}",
    "AKIA{}",
    "AIza{}",
    "pypi-{}",
    "npm_{}",
    "eyJhbGciOi.eyJzdWIi{}.c2ln",
    "-----BEGIN RSA PRIVATE KEY-----\n{}\n-----END RSA PRIVATE KEY-----",
    "cannot sign in with {}",  # the value of a variable of the environment
)
SECRETS = [f"S3cr3tXq{number:02}vWZ7Kd" for number in range(len(KINDS))]
PLANTED = [kind.format(secret) for kind, secret in zip(KINDS, SECRETS, strict=True)]


class PlantedError(Exception):
    """An error of a library, with a secret in its message."""


@pytest.fixture(autouse=True)
def variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEW_TEST_PASSWORD", SECRETS[-1])


def test_nothing_that_a_run_writes_has_a_secret(
    open_run: Callable[..., MlflowTracker],
    tracking_store: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    together = "\n".join(PLANTED)
    token = typed_command.set(shlex.join(PLANTED))
    config = load("umls", {"tracking.run_name": together}).tracking
    tags = {f"planted.{number}": text for number, text in enumerate(PLANTED)}
    tracker = open_run(tracking=config.model_dump(), tags=tags)
    for number, text in enumerate(PLANTED):
        tracker.params({f"planted.{number}": text, f"beside.{number}": [text]})
        tracker.warn(text)
        logging.getLogger("clew").error("planted: %s", text)
        _report(text, 1)
        _report(described(RuntimeError(text)), 1)
    tracker.dataset(DataSet(together, "0", together, "training"))
    with pytest.raises(PlantedError), tracker:
        raise PlantedError(together)
    typed_command.reset(token)
    shown = capfd.readouterr()
    written = b"".join(
        path.read_bytes() for path in sorted(tracking_store.parent.rglob("*")) if path.is_file()
    )
    for found in (written, shown.out.encode(), shown.err.encode()):
        assert [PLANTED[i] for i, secret in enumerate(SECRETS) if secret.encode() in found] == []
    assert b"planted.46" in written


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens=200 tokenizer: bytes, 3 tokens: a b c",
        "http://www.w3.org/1999/02/22-rdf-syntax-ns#type",
        "head virus, relation causes: MRR 0.3, Hits@10 0.5; 12:30 ada@example.org",
        "clew predict --model models:/clew-umls@champion --head virus",
        f"{Path.cwd()}/umls",
        "basic statistics of Asiatic_elephant_population",
        "training.num_epochs=5 model.kind=conve data.train=/a/b.txt",
        "run 0123456789abcdef0123456789abcdef of sqlite:////srv/me@work/mlflow.db",
    ],
)
def test_other_texts_stay(text: str) -> None:
    assert masked(text) == text
