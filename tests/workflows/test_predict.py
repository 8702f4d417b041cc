"""`predict` by run id, checkpoint folder and registered model, one query and files of them."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from clew.__main__ import run as run_command
from clew.config.data import TripleData
from clew.errors import CheckpointError, ConfigError, DataError, UsageError
from clew.link_prediction.calibration import Calibration
from clew.link_prediction.prediction import Query
from clew.link_prediction.sources import load_graph
from clew.runs.reading.runs import download_artifact, find_run
from clew.workflows.model_source import load_source, open_model
from clew.workflows.predict import asked, predict, read_queries
from clew.workflows.promote import PromotionRequest, promote
from clew.workflows.train import train
from tests.edited import edit_manifest
from tests.workflows.trained import TrainedStore, small_config, write_other_split

QUERY = ("acquired_abnormality", "location_of", "")
TRIPLE = ("head", "relation", "tail")
REGISTERED = "models:/asked@champion"


@pytest.fixture
def registered(trained: TrainedStore) -> str:
    promote(PromotionRequest(trained.strong, name="asked"))
    return REGISTERED


def test_answers_equal_the_scores_of_the_trained_model(trained: TrainedStore) -> None:
    """Return the answers by a slow reference: the run's model, all entities, and their names."""
    graph = load_graph(TripleData(name="umls"))
    head, relation, tail = graph.train[100]
    with open_model(trained.strong) as source:
        model = load_source(source).model.eval()
    with torch.no_grad():
        query = model.queries(torch.tensor([head]), torch.tensor([relation]))
        scores = (query @ model.entity.weight.T + model.entity_bias)[0].numpy()
    known = {t for h, r, t in graph.train.tolist() if (h, r) == (head, relation)}
    assert tail in known
    question = asked(graph.entities.name(head), graph.relations.name(relation), "")
    (found,) = predict(trained.strong, [question], top_k=graph.num_entities).predictions
    order = np.argsort(-scores, kind="stable")
    assert [answer.name for answer in found.answers] == [graph.entities.name(i) for i in order]
    assert [answer.known for answer in found.answers] == [i in known for i in order]
    assert [answer.score for answer in found.answers] == pytest.approx(scores[order], abs=1e-5)
    (filtered,) = predict(trained.strong, [question], top_k=135, filter_known=True).predictions
    assert [a.name for a in filtered.answers] == [a.name for a in found.answers if not a.known]


def test_run_folder_and_registry_give_the_same_answers(
    trained: TrainedStore, registered: str, tmp_path: Path
) -> None:
    folder = download_artifact(trained.strong, "best", tmp_path)
    results = [
        predict(model, [asked(*QUERY)]) for model in (trained.strong, str(folder), registered)
    ]
    for other in results[1:]:
        for one, two in zip(
            results[0].predictions[0].answers, other.predictions[0].answers, strict=True
        ):
            assert (one.name, one.known) == (two.name, two.known)
            assert one.score == pytest.approx(two.score, abs=1e-6)
    assert [result.temperature is None for result in results] == [True, True, False]
    assert [result.as_dict()["calibrated"] for result in results] == [False, False, True]
    assert "no calibration was fitted" in results[0].table()
    assert f"temperature {results[2].temperature:.3f} on" in results[2].table()
    probabilities = [a.probability for a in results[2].predictions[0].answers if not a.known]
    assert all(p is not None and 0 < p < 1 for p in probabilities)


def test_a_manifest_of_a_larger_model_than_the_weights_is_refused(
    trained: TrainedStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = download_artifact(trained.strong, "best", tmp_path)
    edit_manifest(folder, lambda m: m["config"]["model"].update(embedding_dim=1_000_000))
    head, relation, _ = QUERY
    assert run_command(["predict", str(folder), "--head", head, "--relation", relation]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_without_its_data_set_a_run_still_answers_by_recorded_names(
    trained: TrainedStore, tmp_path: Path
) -> None:
    path = Path(find_run(trained.other).params["cfg.data.train"])
    moved = path.rename(path.with_name("moved.txt"))
    try:
        result = predict(trained.other, [asked(*QUERY)])
        assert "known answers cannot be marked" in result.table()
        assert {a.known for a in result.predictions[0].answers} == {None}
        with pytest.raises(DataError, match="training triples are not available"):
            predict(trained.other, [asked(*QUERY)], filter_known=True)
    finally:
        moved.rename(path)
    assert predict(trained.other, [asked(*QUERY)]).predictions[0].answers[0].known is not None


def test_a_registered_model_needs_no_data_set(trained: TrainedStore) -> None:
    promote(PromotionRequest(trained.other, name="alone"))
    path = Path(find_run(trained.other).params["cfg.data.train"])
    moved = path.rename(path.with_name("moved.txt"))
    try:
        result = predict("models:/alone/1", [asked(*QUERY)], filter_known=True)
        assert {a.known for a in result.predictions[0].answers} == {False}
    finally:
        moved.rename(path)


def test_files_of_queries(tmp_path: Path) -> None:
    path = tmp_path / "queries.tsv"
    path.write_text(
        "\ufeffcell\tpart_of\n"  # as on Windows
        "\n"
        "cell\tpart_of\t?\n"
        "?\tpart_of\tcell\r\n"
        '{"relation": "part_of", "tail": "cell"}\n'
        '{"head": "cell", "relation": "part_of", "tail": null}\n'
        "cell\tpart_of\ttissue\n",
        encoding="utf-8",
    )
    *found, triple = read_queries(path)
    assert triple.query == Query("part_of", "cell", "tissue")
    tails = [item.query.asks_for for item in found]
    assert tails == ["tail", "tail", "head", "head", "tail"]
    assert found[0].query == found[1].query == found[4].query
    assert found[2].query == found[3].query
    assert found[3].where == f"{path}, line 5"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "contains no query"),
        ("cell\n", r"line 1: 'cell' has 1 tab-separated columns"),
        ("cell\t\ttissue\n", "line 1: .*give a relation and either a head"),
        ("?\tpart_of\t?\n", "line 1: .*give a relation and either a head"),
        ("cell\t\t?\n", "line 1: query with head 'cell', relation '', tail ''; give a relation"),
        ('{"head": "cell", "relation"\n', "line 1: .*JSON"),
        ('{"head": "cell", "rel": "part_of"}\n', "line 1: rel.*expected texts"),
        ('{"head": 3, "relation": "part_of"}\n', "line 1: .*expected texts"),
        ('{"relation": "part_of"}\n', "line 1: .*give a relation and either a head"),
    ],
)
def test_malformed_files_of_queries(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "queries.tsv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        read_queries(path)


def test_a_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        read_queries(tmp_path / "nothing.tsv")
    (tmp_path / "latin.tsv").write_bytes(b"caf\xe9\tpart_of\n")
    with pytest.raises(DataError, match="cannot be read as UTF-8"):
        read_queries(tmp_path / "latin.tsv")


def test_bad_lines_of_a_file_do_not_cost_the_good_ones(
    trained: TrainedStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "queries.tsv"
    lines = ["cell\tpart_of", "sell\tpart_of", "too\tmany\tof\tthem", "?\tpart_of\tcell"]
    path.write_text("\n".join(lines), encoding="utf-8")
    assert run_command(["predict", f"--model={trained.strong}", f"--input={path}", "--json"]) == 0
    good, unknown, malformed, last = json.loads(capsys.readouterr().out)["predictions"]
    assert (good["head"], last["tail"]) == ("cell", "cell")
    assert len(good["answers"]) == len(last["answers"]) == 10
    assert (unknown["head"], unknown["relation"]) == ("sell", "part_of")
    assert f"{path}, line 2" in unknown["error"]
    assert f"{path}, line 3" in malformed["error"]
    assert run_command(["predict", f"--model={trained.strong}", f"--input={path}"]) == 0
    assert capsys.readouterr().out.count("\nerror: ") == 2
    path.write_text("sell\tpart_of\n", encoding="utf-8")
    with pytest.raises(DataError):
        predict(trained.strong, read_queries(path))


@pytest.mark.parametrize("suffix", ["parquet", "tsv", "csv", "json"])
def test_a_list_is_written_as_a_table(
    registered: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str
) -> None:
    path = tmp_path / f"list.{suffix}"
    wanted = [f"--model={registered}", "--relation=part_of", "--top-k=50", "--seen"]
    assert run_command(["predict", *wanted, f"--output={path}"]) == 0
    assert str(path) in capsys.readouterr().out
    assert run_command(["predict", *wanted, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    read = {
        "parquet": pd.read_parquet,
        "tsv": lambda file: pd.read_csv(file, sep="\t"),
        "csv": pd.read_csv,
        "json": pd.read_json,
    }[suffix]
    frame = read(path)
    assert list(frame.columns) == list(rows[0])
    for name in ("rank", "head", "tail", "head_rank", "num_tails", "known"):
        assert frame[name].tolist() == [row[name] for row in rows]
    assert frame["probability"].tolist() == pytest.approx(
        [r["probability"] for r in rows], abs=1e-6
    )
    assert frame["probability"].is_monotonic_decreasing
    assert not frame["known"].any()


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_answers_of_a_file_of_queries_are_written(
    registered: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str
) -> None:
    path, output = tmp_path / "queries.tsv", tmp_path / f"answers.{suffix}"
    path.write_text("cell\tpart_of\t?\nsell\tpart_of\t?\n?\tpart_of\ttissue\n")
    asking = ["predict", f"--model={registered}", f"--input={path}", "--top-k=5"]
    assert run_command([*asking, f"--output={output}"]) == 0
    assert str(output) in capsys.readouterr().out
    assert run_command([*asking, f"--output={output}", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["output"], said["num_rows"]) == (str(output), 11)
    assert run_command([*asking, "--json"]) == 0
    first, bad, last = json.loads(capsys.readouterr().out)["predictions"]
    frame = {"parquet": pd.read_parquet, "csv": pd.read_csv}[suffix](output)
    assert frame["query"].tolist() == [1] * 5 + [2] + [3] * 5
    assert frame["tail"][:5].tolist() == [answer["tail"] for answer in first["answers"]]
    assert frame["head"][6:].tolist() == [answer["head"] for answer in last["answers"]]
    assert frame["score"][6:].tolist() == pytest.approx([a["score"] for a in last["answers"]])
    assert frame["error"].notna().tolist() == [False] * 5 + [True] + [False] * 5
    assert frame["error"][5] == bad["error"]


def test_a_fit_that_is_not_used_is_not_called_a_calibration(
    registered: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    unused = Calibration(1.0, 8, 3.0, 3.0, 0.3, 0.3, not_fitted_because="of a reason")
    monkeypatch.setattr(Calibration, "read", lambda path: unused)
    result = predict(registered, [asked(*QUERY)])
    assert not result.as_dict()["calibrated"]
    assert "not fitted: of a reason" in result.table()
    assert run_command(["predict", registered, "--relation=location_of", "--top-k=2"]) == 0
    assert "not fitted: of a reason" in capsys.readouterr().out


def test_rows_of_a_file_say_which_end_they_answer(registered: str, tmp_path: Path) -> None:
    path, output = tmp_path / "queries.tsv", tmp_path / "answers.parquet"
    path.write_text("cell\tpart_of\ttissue\n?\tpart_of\ttissue\nsell\tpart_of\tcell\n")
    asking = ["predict", f"--model={registered}", f"--input={path}", "--top-k=1"]
    assert run_command([*asking, f"--output={output}"]) == 0
    frame = pd.read_parquet(output)
    assert frame["query"].tolist() == [1, 1, 2, 3]
    assert frame["asks_for"].dropna().tolist() == ["tail", "head", "head"]
    before = path.read_bytes()
    renamed = path.rename(tmp_path / "queries.csv")
    for option in ("--input", "--triples"):
        asking = ["predict", f"--model={registered}", f"{option}={renamed}"]
        assert run_command([*asking, f"--output={tmp_path}/./queries.csv"]) == 2
    assert renamed.read_bytes() == before


def test_given_triples_are_scored_into_a_table(registered: str, tmp_path: Path) -> None:
    """A thousand rows with one unknown name give 999 answers."""
    graph = load_graph(TripleData(name="umls"))
    named = [
        "\t".join([graph.entities.name(h), graph.relations.name(r), graph.entities.name(t)])
        for h, r, t in graph.train[:998].tolist()
    ]
    path, output = tmp_path / "triples.tsv", tmp_path / "scored.parquet"
    lines = [*named, "sell\tpart_of\tcell", "cell\tpart_of\ttissue"]
    path.write_text("\n".join(lines), encoding="utf-8")
    scored = ["predict", f"--model={registered}", f"--triples={path}", f"--output={output}"]
    assert run_command(scored) == 0
    frame = pd.read_parquet(output)
    assert frame["head"].tolist() == [line.split("\t")[0] for line in lines]
    assert frame["score"].notna().tolist() == frame["error"].isna().tolist()
    assert frame.index[frame["score"].isna()].tolist() == [998]
    assert frame["known"][:998].all()
    for_tails, for_heads = predict(registered, [asked("cell", "part_of", "tissue")]).predictions
    last = frame.iloc[999]
    assert last["tail_rank"] == for_tails.place.rank
    assert last["head_probability"] == pytest.approx(for_heads.place.probability)
    path.write_text("cell\tpart_of\t?\n", encoding="utf-8")
    assert run_command(scored) == 2


def test_candidates_of_a_question(
    trained: TrainedStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = load_graph(TripleData(name="umls"))
    names = tmp_path / "tails.txt"
    names.write_text("tissue\ncell\nnothing\n\nvirus\n", encoding="utf-8")
    asking = ["predict", f"--model={trained.strong}", "--head=cell", "--relation=part_of", "--json"]
    assert run_command([*asking, f"--tails={names}"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["predictions"]
    assert {answer["tail"] for answer in found["answers"]} == {"tissue", "cell", "virus"}
    assert run_command([*asking, "--seen", "--top-k=200"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["predictions"]
    relation = graph.relations.id("part_of")
    seen = {graph.entities.name(t) for _, r, t in graph.train.tolist() if r == relation}
    assert {answer["tail"] for answer in found["answers"]} == seen
    assert run_command([*asking, "--tail-kind=Drug"]) == 2
    assert run_command([*asking, "--seen", "--conformal"]) == 2


def test_a_run_without_a_best_checkpoint(trained: TrainedStore) -> None:
    with pytest.raises(CheckpointError, match="has no best checkpoint"):
        predict(trained.unvalidated, [asked(*QUERY)])


def test_command_line(
    trained: TrainedStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def clew(*arguments: str) -> tuple[int, str, str]:
        code = run_command(["predict", f"--model={trained.strong}", *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    # As MLproject passes it: with every option, and empty values for those that were not given.
    code, out, _ = clew(
        "--head=cell", "--relation=part_of", "--tail=", "--top-k=", "--filter-known="
    )
    assert code == 0
    assert "cell  part_of  ?" in out
    assert len(out.splitlines()) == 3 + 2 + 10
    code, out, _ = clew(
        "--tail=cell", "--relation=part_of", "--top-k=3", "--filter-known", "--json"
    )
    assert code == 0
    content = json.loads(out)
    (prediction,) = content["predictions"]
    assert prediction["tail"] == "cell"
    assert [set(a) for a in prediction["answers"]] == 3 * [
        {"rank", "head", "label", "score", "probability", "known"}
    ]
    assert content["calibrated"] is False
    path = tmp_path / "queries.tsv"
    path.write_text("cell\tpart_of\n?\tpart_of\tcell\n", encoding="utf-8")
    code, out, _ = clew(f"--input={path}", "--json")
    assert code == 0
    assert len(json.loads(out)["predictions"]) == 2


def test_a_whole_triple_is_placed_at_both_ends(
    registered: str, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = load_graph(TripleData(name="umls"))
    head, relation, tail = graph.test[5]
    named = graph.entities.name(head), graph.relations.name(relation), graph.entities.name(tail)
    question = [f"--{key}={name}" for key, name in zip(TRIPLE, named, strict=True)]
    assert run_command(["predict", f"--model={registered}", *question, "--json"]) == 0
    for_tails, for_heads = json.loads(capsys.readouterr().out)["predictions"]
    known = {t for h, r, t in graph.train.tolist() if (h, r) == (head, relation)} - {int(tail)}
    (whole,) = predict(registered, [asked(*named[:2], "")], top_k=graph.num_entities).predictions
    order = [a.name for a in whole.answers if graph.entities.id(a.name) not in known]
    place = for_tails["asked"]
    assert (place["tail"], place["rank"]) == (named[2], order.index(named[2]) + 1)
    assert place["num_candidates"] == len(order)
    assert 0 < place["probability"] < 1
    assert for_heads["asked"]["head"] == named[0]
    assert (for_heads["tail"], len(for_heads["answers"])) == (named[2], 10)
    assert run_command(["predict", f"--model={registered}", *question]) == 0
    said = capsys.readouterr().out
    assert "rank of this triple among" in said
    assert "known from training" in said


def test_a_guess_is_called_one(trained: TrainedStore, capsys: pytest.CaptureFixture[str]) -> None:
    graph = load_graph(TripleData(name="umls"))
    seen = set(map(tuple, graph.train[:, :2].tolist()))
    head = next(e for e in range(graph.num_entities) if (e, 0) not in seen)
    question = [f"--head={graph.entities.name(head)}", f"--relation={graph.relations.name(0)}"]
    assert run_command(["predict", f"--model={trained.strong}", *question]) == 0
    assert "is never the head of" in capsys.readouterr().out


def test_answer_sets_of_a_run_and_of_its_registered_model_are_the_same(
    trained: TrainedStore, registered: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run is calibrated when it is queried, a registered model when it is promoted."""
    graph = load_graph(TripleData(name="umls"))
    found = []
    for model in (trained.strong, registered):
        question = [f"--model={model}", "--head=cell", "--relation=part_of", "--tail=cell"]
        assert run_command(["predict", *question, "--conformal", "--top-k=135", "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out)["predictions"])
        assert run_command(["predict", *question, "--conformal=0.8"]) == 0
        assert "in at least 80 % of all cases" in capsys.readouterr().out
    for one, two in zip(*found, strict=True):
        assert one["answer_set"] == two["answer_set"]
        assert [a["in_set"] for a in one["answers"]] == [a["in_set"] for a in two["answers"]]
        size = one["answer_set"]["size"]
        new = [answer for answer in one["answers"] if not answer["known"]]
        assert [answer["in_set"] for answer in new] == [True] * size + [False] * (len(new) - size)
        assert not any(answer["in_set"] for answer in one["answers"] if answer["known"])
        assert one["asked"]["in_set"] in (True, False)
        relation = graph.relations.id("part_of")
        own = int((graph.valid[:, 1] == relation).sum())
        assert one["answer_set"]["num_valid_of_relation"] == own
        assert 0.75 < one["answer_set"]["coverage"] <= 1


def test_an_answer_set_needs_the_data_of_a_run(trained: TrainedStore) -> None:
    path = Path(find_run(trained.other).params["cfg.data.valid"])
    moved = path.rename(path.with_name("moved.txt"))
    try:
        with pytest.raises(
            DataError,
            match=r"calibrated on the model's data: .*valid\.txt.*or leave out --conformal",
        ):
            predict(trained.other, [asked(*QUERY)], level=0.9)
    finally:
        moved.rename(path)


def test_an_answer_set_needs_validation_triples(trained: TrainedStore, tmp_path: Path) -> None:
    splits = write_other_split(tmp_path / "split") | {"data__valid": ""}
    config = small_config(
        **splits, training__num_epochs=1, evaluation__enabled=False, data__name=None
    )
    folder = tmp_path / "model"
    train(config, output_dir=folder)
    (checkpoint,) = folder.glob("checkpoints/*")
    with pytest.raises(DataError, match="have no validation triples"):
        predict(str(checkpoint), [asked(*QUERY)], level=0.9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--head=cell", "--relation=part_of", "--top-k=many"], "--top-k is 'many'"),
        (["--head=cell", "--relation=part_of", "--top-k=0"], "--top-k is '0'"),
        (["--head=cell", "--relation=part_of", "--conformal=90"], "--conformal is '90'"),
        (
            ["--head=cell", "--relation=part_of", "--filter-known=maybe"],
            "--filter-known is 'maybe'",
        ),
        (["--head=cell", "--tail=cell"], "give a relation"),
        (["--head=cell", "--tail=zell", "--relation=part_of"], "did you mean 'cell'"),
        (["--head=cell"], "give a relation"),
        (["--head=zell", "--relation=part_of"], "did you mean 'cell'"),
        (["--head=cell", "--relation=partof"], "unknown relation 'partof'"),
        (["--head=cell", "--input=x"], "--input and a query are both given"),
        (["--relation=part_of", "--triples=x"], "--triples"),
        (["--relation=part_of", "--head=cell", "--output=x.odt"], "--output"),
        (["--relation=part_of", "--output=x.xlsx"], "--output"),
        (["--relation=part_of", "--conformal"], "--conformal"),
        (["--prompt=cell", "--output=text.txt"], "--output"),
    ],
)
def test_wrong_use_of_the_command_line(
    trained: TrainedStore,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    assert run_command(["predict", f"--model={trained.strong}", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("clew: error: ")
    assert message in line


def test_a_checkpoint_without_names_and_data(trained: TrainedStore, tmp_path: Path) -> None:
    folder = download_artifact(trained.weak, "best", tmp_path)
    edit_manifest(folder, lambda m: m.update(run_id=""))
    edit_manifest(folder, lambda m: m["config"]["data"].update(name="a graph that is not here"))
    with pytest.raises(CheckpointError, match="vocabulary is not next to it"):
        predict(str(folder), [asked(*QUERY)])
    # The vocabulary next to it is enough.
    download_artifact(trained.weak, "vocabulary", tmp_path)
    assert predict(str(folder), [asked(*QUERY)]).predictions


def test_a_model_is_needed(trained: TrainedStore) -> None:
    with pytest.raises((ConfigError, UsageError), match="no model given"):
        predict("", [asked(*QUERY)])


def test_a_models_own_path_is_not_read_where_people_sign_in(
    trained: TrainedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("hunter2-in-one-column\n", encoding="utf-8")
    folder = download_artifact(trained.strong, "best", tmp_path / "model")
    own = {"kind": "triples", "train": str(secret)}
    edit_manifest(folder, lambda m: m["config"].update(data=own))
    question = [asked("virus", "causes", "")]
    monkeypatch.setenv("CLEW_ONLY_DATA_IN", str(tmp_path / "model"))
    with open_model(str(folder)) as source:
        with pytest.raises(ConfigError) as refused:
            load_source(source)
        noted = predict(str(folder), question).notes
    said = [str(refused.value), *noted]
    assert sum("CLEW_DATA" in each for each in said) == 2
    assert "hunter2" not in str(said)
