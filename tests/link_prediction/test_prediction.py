"""Predictions by name against a plain loop over the model, and errors with names."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from clew.config.load import from_mapping
from clew.config.schema import RunConfig
from clew.errors import CheckpointError, ConfigError, DataError
from clew.link_prediction.calibration import Calibration
from clew.link_prediction.models.conve import ConvE
from clew.link_prediction.prediction import Predictor, Query
from clew.link_prediction.subject import (
    ENTITIES_FILE,
    RELATIONS_FILE,
    load_predictor,
    read_known,
    write_known,
    write_model_folder,
)
from clew.link_prediction.triples import FilterIndex
from clew.link_prediction.vocabulary import Vocabulary
from clew.training.checkpoints import write_checkpoint
from clew.training.manifest import MODEL_FILE, Manifest

NUM_ENTITIES, NUM_RELATIONS = 23, 3
KNOWN = np.array([[0, 1, 4], [0, 1, 5], [2, 0, 4], [0, 2, 0], [0, 1, 4]], np.int32)
CALIBRATION = Calibration(1.7, 8, 3.0, 2.5, 0.3, 0.1)


def config(**overrides: object) -> RunConfig:
    model = {"embedding_dim": 12, "output_channels": 4}
    return from_mapping({"data": {"name": "umls", **overrides}, "model": model})


def entities() -> Vocabulary:
    found = Vocabulary.from_names("entity", [f"e{i:02}" for i in range(NUM_ENTITIES)])
    labels = [None] * NUM_ENTITIES
    labels[4], labels[5], labels[6] = "Aspirin", "Headache", "Headache"
    return found.with_labels(pa.array(labels, pa.string()))


def relations() -> Vocabulary:
    found = Vocabulary.from_names("relation", ["treats", "causes", "is a"])
    return found.with_labels(pa.array([None, "brings about", None], pa.string()))


def model(*, inverses: bool = True) -> ConvE:
    torch.manual_seed(5)
    built = ConvE(NUM_ENTITIES, NUM_RELATIONS * (2 if inverses else 1), config().model)
    with torch.no_grad():
        assert isinstance(built.entity_bias, torch.Tensor)
        built.entity_bias.normal_()
        built.entity.weight.mul_(3)
        # Statistics that differ from those of a new network.
        built.train()
        for _ in range(3):
            built.queries(torch.arange(20), torch.arange(20) % NUM_RELATIONS)
    return built.eval()


def predictor(**settings: object) -> Predictor:
    known = settings.pop("known", FilterIndex.in_both_directions(KNOWN, NUM_RELATIONS))
    calibration = settings.pop("calibration", CALIBRATION)
    return Predictor(model(), entities(), relations(), known=known, calibration=calibration)


def scores_of(head: int, relation: int) -> np.ndarray:
    """Score every tail, one query and one entity at a time."""
    net = model()
    with torch.no_grad():
        query = net.queries(torch.tensor([head]), torch.tensor([relation]))[0].double()
        return np.array(
            [
                float(query @ net.entity.weight[e].double() + net.entity_bias[e].double())
                for e in range(NUM_ENTITIES)
            ]
        )


@pytest.mark.parametrize("filter_known", [False, True])
@pytest.mark.parametrize("top_k", [1, 5, 1000])
def test_tails_equal_the_plain_loop(top_k: int, filter_known: bool) -> None:
    (found,) = predictor().predict(
        [Query("causes", head="e00")], top_k=top_k, filter_known=filter_known
    )
    scores, known = scores_of(0, 1), {4, 5}
    weights = np.exp(scores / CALIBRATION.temperature)
    total = sum(weights[e] for e in range(NUM_ENTITIES) if e not in known)
    order = [e for e in np.argsort(-scores) if not (filter_known and e in known)][:top_k]
    assert [answer.name for answer in found.answers] == [f"e{e:02}" for e in order]
    assert [answer.rank for answer in found.answers] == list(range(1, len(order) + 1))
    for answer, e in zip(found.answers, order, strict=True):
        assert answer.score == pytest.approx(scores[e], abs=1e-5)
        assert answer.known == (e in known)
        if e in known:
            assert answer.probability is None
        else:
            assert answer.probability == pytest.approx(weights[e] / total, rel=1e-4)


@pytest.mark.parametrize("top_k", [1, 5, 1000])
def test_new_answers_are_taken_apart_from_known_ones(top_k: int) -> None:
    def names(*, known: bool, **settings: bool) -> list[str]:
        (found,) = predictor().predict([Query("causes", head="e00")], top_k=top_k, **settings)
        return [answer.name for answer in found.answers if answer.known == known]

    assert names(known=False, apart=True) == names(known=False, filter_known=True)
    assert names(known=True, apart=True) == names(known=True)


def test_probabilities_of_all_candidates_sum_to_one() -> None:
    (found,) = predictor().predict([Query("causes", head="e00")], top_k=NUM_ENTITIES)
    assert sum(a.probability or 0.0 for a in found.answers) == pytest.approx(1.0, abs=1e-5)


def test_heads_are_tails_of_the_inverse_relation() -> None:
    (found,) = predictor().predict([Query("causes", tail="e04")], top_k=NUM_ENTITIES)
    scores = scores_of(4, 1 + NUM_RELATIONS)
    assert [a.name for a in found.answers] == [f"e{e:02}" for e in np.argsort(-scores)]
    assert {a.name for a in found.answers if a.known} == {"e00"}


def test_a_batch_answers_as_its_queries_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    queries = [Query("treats", head=f"e{i:02}") for i in range(9)]
    queries += [Query("is a", tail=f"e{i:02}") for i in range(9)]
    together = predictor().predict(queries, top_k=4)
    alone = [predictor().predict([query], top_k=4)[0] for query in queries]
    monkeypatch.setattr("clew.link_prediction.query_scores.CHUNK_MIB", 4 * 5 * NUM_ENTITIES / 2**20)
    in_chunks = predictor().predict(queries, top_k=4)
    for other in (alone, in_chunks):
        for one, two in zip(together, other, strict=True):
            assert [a.name for a in one.answers] == [a.name for a in two.answers]
            assert [a.score for a in one.answers] == pytest.approx(
                [a.score for a in two.answers], abs=1e-5
            )


@pytest.mark.parametrize(("end", "about"), [("tail", 9), ("tail", 5), ("head", 11), ("head", 0)])
def test_places_equal_the_plain_loop(end: str, about: int) -> None:
    """Compute rank and probability without the other known answers, entity by entity."""
    queries = {
        "tail": (Query("causes", head="e00", about=f"e{about:02}"), scores_of(0, 1), {4, 5}),
        "head": (Query("causes", tail="e04", about=f"e{about:02}"), scores_of(4, 4), {0}),
    }
    query, scores, known = queries[end]
    (found,) = predictor().predict([query], top_k=2)
    place, others = found.place, [e for e in range(NUM_ENTITIES) if e not in known | {about}]
    assert place is not None
    assert len(found.answers) == 2
    assert (place.name, place.known) == (f"e{about:02}", about in known)
    assert place.num_candidates == len(others) + 1
    assert place.rank == 1 + sum(scores[e] > scores[about] for e in others)
    weights = np.exp(scores / CALIBRATION.temperature)
    assert place.probability == pytest.approx(
        weights[about] / (weights[about] + sum(weights[e] for e in others)), rel=1e-4
    )
    assert found.as_dict()["asked"][end] == f"e{about:02}"


def test_the_place_of_an_answer_among_equals_counts_half() -> None:
    asked = predictor(known=None)
    with torch.no_grad():
        for parameter in asked.model.parameters():
            parameter.zero_()
    (found,) = asked.predict([Query("causes", head="e00", about="e07")])
    assert found.place is not None
    assert found.place.rank == 1 + (NUM_ENTITIES - 1) / 2
    assert found.place.known is None


def test_a_whole_triple_is_two_questions() -> None:
    triple = Query("causes", "e00", "e04")
    assert triple.ways() == [
        Query("causes", head="e00", about="e04"),
        Query("causes", tail="e04", about="e00"),
    ]
    assert triple.ways(heads=False) == triple.ways()[:1]
    assert Query("causes", head="e00").ways() == [Query("causes", head="e00")]


def test_an_end_that_never_occurs_with_the_relation_is_told() -> None:
    queries = [Query("causes", head="e00"), Query("causes", head="Aspirin")]
    queries += [Query("brings about", tail="e04"), Query("causes", tail="e00")]
    seen, unseen, seen_tail, unseen_tail = predictor().predict(queries)
    assert (seen.num_known, seen_tail.num_known) == (2, 1)
    assert seen.warning is seen_tail.warning is None
    assert str(unseen.warning).startswith("'e04' is never the head of 'causes' in training")
    assert str(unseen_tail.warning).startswith("'e00' is never the tail of 'causes' in training")
    (untold,) = predictor(known=None).predict([queries[1]])
    assert (untold.num_known, untold.warning) == (None, None)


def test_an_entity_without_training_facts_is_told() -> None:
    queries = [Query("causes", head=name) for name in ("e04", "e07", "e22", "e05")]
    found = predictor().predict([*queries, Query("treats", tail="e07")])
    assert [each.has_facts for each in found] == [True, False, False, True, False]
    for each in found:
        assert each.warning is not None
        assert ("no training fact" in each.warning) != each.has_facts
        assert ("other facts about the entity" in each.warning) == each.has_facts
    (untold,) = predictor(known=None).predict(queries[1:2])
    assert untold.has_facts


def test_labels_are_understood_and_shown() -> None:
    by_name, by_label = (
        predictor().predict([query], top_k=NUM_ENTITIES)[0]
        for query in (Query("causes", head="e04"), Query("brings about", head="Aspirin"))
    )
    assert by_name == by_label
    assert {a.label for a in by_name.answers if a.name == "e04"} == {"Aspirin"}
    assert {a.label for a in by_name.answers if a.name == "e07"} == {"e07"}


def test_without_training_triples_known_is_untold() -> None:
    asked = predictor(known=None)
    (found,) = asked.predict([Query("causes", head="e00")])
    assert {a.known for a in found.answers} == {None}
    with pytest.raises(DataError, match="filter_known"):
        asked.predict([Query("causes", head="e00")], filter_known=True)


def test_without_calibration_there_are_no_probabilities() -> None:
    (found,) = predictor(calibration=None).predict([Query("causes", head="e00")])
    assert {a.probability for a in found.answers} == {None}


def test_json_names_the_end_asked_for() -> None:
    tails, heads = predictor().predict(
        [Query("causes", head="e00"), Query("causes", tail="e04")], top_k=1
    )
    assert {k: v for k, v in tails.as_dict().items() if k != "answers"} == {
        "head": "e00",
        "relation": "causes",
        "num_known": 2,
        "warning": None,
    }
    assert list(tails.as_dict()["answers"][0]) == [
        "rank",
        "tail",
        "label",
        "score",
        "probability",
        "known",
    ]
    assert "head" in heads.as_dict()["answers"][0]
    assert heads.as_dict()["tail"] == "e04"


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (Query("causes", head="e0"), r"'e0'.*'e0\d'"),
        (Query("causes", head="Asprin"), r"'Asprin'.*'e04' \(Aspirin\)"),
        (Query("treat", head="e00"), r"'treat'.*'treats'"),
        (Query("causes", tail="Headache"), r"'Headache'.*'e05'"),
    ],
)
def test_unknown_names_get_near_matches(query: Query, message: str) -> None:
    with pytest.raises(DataError, match=message):
        predictor().predict([query])


@pytest.mark.parametrize(
    "query",
    [Query("causes"), Query("causes", head="e00", tail="e01"), Query("", head="e00")],
)
def test_a_query_has_a_relation_and_one_end(query: Query) -> None:
    with pytest.raises(ConfigError, match=f"relation {query.relation!r}"):
        predictor().predict([query])


def test_top_k_is_positive() -> None:
    with pytest.raises(ConfigError, match="top_k"):
        predictor().predict([Query("causes", head="e00")], top_k=0)


def test_no_heads_without_inverse_relations() -> None:
    asked = Predictor(model(inverses=False), entities(), relations())
    asked.predict([Query("causes", head="e00")])
    with pytest.raises(DataError, match=r"data\.inverse_relations"):
        asked.predict([Query("causes", tail="e00")])


def test_scores_that_are_not_numbers_are_refused() -> None:
    broken = model()
    with torch.no_grad():
        broken.entity.weight[3] = torch.nan
    with pytest.raises(CheckpointError, match="NaN"):
        Predictor(broken, entities(), relations()).predict([Query("causes", head="e00")])


def test_names_of_another_run_are_refused() -> None:
    other = Vocabulary.from_names("entity", ["a", "b"])
    with pytest.raises(CheckpointError, match=r"23 entities and 6 relation rows.*2 entities"):
        Predictor(model(), other, relations())


def test_no_queries_no_predictions() -> None:
    assert predictor().predict([]) == []


def test_calibration_leaves_other_known_answers_out() -> None:
    """With a huge score on a known answer, only a fit that excludes it stays moderate."""
    held_out = np.array([[0, 1, e] for e in range(7, 20)], np.int32)
    with_known = predictor().calibrate(held_out)
    without = predictor(known=None).calibrate(held_out)
    assert with_known is not None
    assert without is not None
    assert with_known.num_queries == 2 * len(held_out)
    scores = scores_of(0, 1)
    candidates = np.delete(scores, [4, 5])
    log_z = np.log(np.exp(candidates).sum())
    tails_nll = np.mean([log_z - scores[e] for e in range(7, 20)])
    heads_nll = np.mean(
        [np.log(np.exp(s := scores_of(e, 1 + NUM_RELATIONS)).sum()) - s[0] for e in range(7, 20)]
    )
    assert with_known.nll_before == pytest.approx((tails_nll + heads_nll) / 2, abs=1e-5)
    assert without.nll_before > with_known.nll_before


def test_calibration_can_do_with_a_held_out_triple_that_is_known() -> None:
    """Validation files can repeat training triples; such an answer remains a candidate."""
    fitted = predictor().calibrate(KNOWN[:1])
    assert fitted is not None
    assert np.isfinite(fitted.nll_before)


def test_calibration_takes_a_share_of_many_triples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clew.link_prediction.query_scores.MAX_CALIBRATION_QUERIES", 10)
    fitted = predictor().calibrate(np.array([[e, 0, e + 1] for e in range(20)], np.int32))
    assert fitted is not None
    assert fitted.num_queries == 10
    assert predictor().calibrate(np.empty((0, 3), np.int32)) is None


def model_folder(folder: Path) -> Path:
    manifest = Manifest(1, 1, 0.0, "link_prediction", config().model_dump(mode="json"), "h", "f")
    write_checkpoint(folder / "best", model(), manifest)
    (folder / "names").mkdir()
    entities().write(folder / "names" / ENTITIES_FILE)
    relations().write(folder / "names" / RELATIONS_FILE)
    return write_model_folder(
        folder / "model",
        checkpoint=folder / "best",
        vocabulary=folder / "names",
        known=KNOWN,
        calibration=CALIBRATION,
    )


def test_a_model_folder_answers_as_the_model_it_was_made_of(tmp_path: Path) -> None:
    queries = [Query("causes", head="e00"), Query("treats", tail="Aspirin")]
    loaded = load_predictor(model_folder(tmp_path))
    assert loaded.predict(queries) == predictor().predict(queries)
    assert loaded.calibration == CALIBRATION


def test_a_model_folder_holds_no_pickle(tmp_path: Path) -> None:
    suffixes = {p.suffix for p in model_folder(tmp_path).rglob("*") if p.is_file()}
    assert suffixes == {".safetensors", ".json", ".parquet"}


def test_a_folder_without_names_is_refused(tmp_path: Path) -> None:
    folder = model_folder(tmp_path)
    (folder / "vocabulary" / ENTITIES_FILE).unlink()
    with pytest.raises(DataError, match=ENTITIES_FILE):
        load_predictor(folder)


def test_a_torn_checkpoint_is_refused(tmp_path: Path) -> None:
    folder = model_folder(tmp_path)
    content = (folder / MODEL_FILE).read_bytes()
    (folder / MODEL_FILE).write_bytes(content[: len(content) // 2])
    with pytest.raises(CheckpointError, match=MODEL_FILE):
        load_predictor(folder)


def test_known_triples_round_trip(tmp_path: Path) -> None:
    write_known(tmp_path / "known.parquet", KNOWN)
    read = read_known(tmp_path / "known.parquet")
    assert read.dtype == np.int32
    assert sorted(map(tuple, read.tolist())) == sorted(map(tuple, KNOWN.tolist()))
    (tmp_path / "other.parquet").write_bytes(b"PAR1 nonsense")
    with pytest.raises(DataError, match=r"other\.parquet"):
        read_known(tmp_path / "other.parquet")
