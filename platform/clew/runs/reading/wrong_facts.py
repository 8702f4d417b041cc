"""Training facts that people marked wrong, as a list that the next training leaves out."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from clew import names
from clew.runs.reading.decisions import Decision, last_of_each
from clew.runs.reading.reviews import DataOrigin, Fact, Review


@dataclass(frozen=True)
class WrongFact:
    """A training fact that counts as wrong."""

    fact: Fact
    num_reviews: int
    """Reviews that mark it wrong."""
    decision: Decision | None = None
    """What a person decided where reviewers disagree."""


def wrong_facts(reviews: Iterable[Review], decisions: Iterable[Decision] = ()) -> list[WrongFact]:
    """Return the facts of one data set that count as wrong, those with the most reviews first.

    A decision counts in place of the reviews: a fact decided right is left out, whoever marked it.
    """
    decided = {
        decision.triple.triple: decision
        for decision in last_of_each(decisions)
        if decision.about == "fact"
    }
    facts: dict[tuple[str, str, str], Fact] = {}
    votes: Counter[tuple[str, str, str]] = Counter()
    for review in reviews:
        marked = {fact.triple: fact for fact in review.wrong}
        facts = marked | facts
        votes.update(marked.keys())
    for triple, decision in decided.items():
        facts.setdefault(triple, decision.triple)
    order = sorted(facts, key=lambda triple: -votes[triple])
    found = [WrongFact(facts[triple], votes[triple], decided.get(triple)) for triple in order]
    return [fact for fact in found if fact.decision is None or fact.decision.verdict == "wrong"]


def wrong_facts_tsv(
    reviews: Iterable[Review], origin: DataOrigin, decisions: Iterable[Decision] = ()
) -> str:
    """Return the facts that count as wrong as a list for `data.exclude`."""
    triples = [wrong.fact.triple for wrong in wrong_facts(reviews, decisions)]
    return exclusion_list(origin, triples)


def exclusion_list(origin: DataOrigin, triples: Iterable[tuple[str, str, str]]) -> str:
    """Return facts as `head<TAB>relation<TAB>tail`, for `data.exclude`.

    Lines before them say from which data they are. A name with a tab or a line break cannot be in
    such a file, so it is left out.
    """
    told = {
        names.LIST_DATA_SET_PREFIX: origin.name,
        names.LIST_FINGERPRINT_PREFIX: origin.fingerprint,
    }
    lines = [f"{key}{' '.join(value.split())}" for key, value in told.items() if value]
    facts = ["\t".join(triple) for triple in triples if not set("\t\r\n") & set("".join(triple))]
    return "".join(f"{line}\n" for line in [*lines, *facts])
