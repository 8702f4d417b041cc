"""Section `data`: which examples a run sees."""

import os
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from clew.config.base import TRAIN_FLAG, Section
from clew.config.image_sequences import ImageSequenceData
from clew.errors import ConfigError
from clew.files import DATA_VARIABLE, ONLY_DATA_VARIABLE, expanded, is_in_one_of


class ImportSettings(Section):
    """How files in published formats are read and split."""

    columns: str = ""
    """Columns of a table, such as `head=x_id,relation=relation,tail=y_id`, by name or number; or
    their order: `head,tail,relation`."""
    header: bool = False
    """Take the first line of a table as names of columns, whatever its words are."""
    clean: bool = False
    """Remove spaces at the ends of names and invisible ones, and give every name one Unicode
    form."""
    qualifiers: bool = False
    """Edges of KGX with different qualifiers get different relations."""
    negated: Literal["drop", "relation"] = "drop"
    """Drop edges that deny their triple, or give them relations of their own."""
    weights: Literal["ignore", "use"] = "ignore"
    """Count each fact as often as its weight, a column of the table, says."""
    split: Literal["random", "time", "relation"] = "random"
    """Hold out triples at random, the newest, or at random the same share of each relation."""
    valid_fraction: float = Field(default=0.05, ge=0, lt=1)
    """Share of the triples for validation, if the files have no splits of their own."""
    test_fraction: float = Field(default=0.05, ge=0, lt=1)
    """Share of the triples for the test, if the files have no splits of their own."""
    seed: int = Field(default=0, ge=0)
    """Seed of the random split."""


class TripleData(ImportSettings):
    """A knowledge graph as triples in files, or a named data set."""

    paths: ClassVar[tuple[str, ...]] = (
        "path",
        "packed",
        "train",
        "valid",
        "test",
        "entity_to_id",
        "relation_to_id",
        "node_name_dict",
        "edge_map",
        "exclude",
    )
    kind: Literal["triples"] = "triples"
    """Triples `head<TAB>relation<TAB>tail`; plain text, gzip or zstd."""
    name: str | None = None
    """A named data set: `umls` is bundled, others are folders under `$CLEW_DATA`."""
    path: str | None = None
    """File or folder in a published format (instead of `name`), read as `clew data FILE` does."""
    packed: str | None = None
    """File written by `clew data --pack` (instead of `name`); its triples stay on disk."""
    train: Annotated[str | None, TRAIN_FLAG] = None
    """File of training triples (instead of `name`)."""
    valid: Annotated[str | None, TRAIN_FLAG] = None
    """File of validation triples (default: that of the data set in `name`)."""
    test: Annotated[str | None, TRAIN_FLAG] = None
    """File of test triples (default: that of the data set in `name`)."""
    entity_to_id: Annotated[str | None, TRAIN_FLAG] = None
    """Dictionary `name<TAB>id` of entities; with it, triples can contain names or ids."""
    relation_to_id: Annotated[str | None, TRAIN_FLAG] = None
    """Dictionary `name<TAB>id` of relations."""
    node_name_dict: str | None = None
    """Readable labels of entities, `id<TAB>name`."""
    edge_map: str | None = None
    """JSON file that maps each predicate to a readable label."""
    exclude: str | None = None
    """File of training triples to leave out, `head<TAB>relation<TAB>tail`, such as the list of
    facts marked wrong that the dashboard exports."""
    inverse_relations: bool = True
    """Add `(tail, inverse relation, head)` for every training triple; heads are then predicted
    as tails of the inverse relation."""

    @property
    def source(self) -> str:
        return self.name or self.path or self.train or self.packed or ""

    def _check(self) -> None:
        keys = ("name", "path", "train", "packed")
        given = [f"data.{key}" for key in keys if getattr(self, key) is not None]
        if len(given) != 1:
            shown = " and ".join(given) or "none of data.name, data.path, data.train, data.packed"
            raise ValueError(
                f"{shown} given; give exactly one of them: a named data set (for example umls), a "
                "file or folder in a published format, a file of training triples, or a file "
                "written by clew data --pack"
            )
        of_split = () if self.path else ("split", "valid_fraction", "test_fraction", "seed")
        for key in ImportSettings.model_fields if self.packed else of_split:
            if getattr(self, key) != ImportSettings.model_fields[key].default:
                raise ValueError(
                    f"data.{key} is given, but {given[0]} is read as it is; leave it out, or make "
                    "a data set first: clew data FILE --output-dir FOLDER"
                )
        for key in ("valid", "test", "entity_to_id", "relation_to_id"):
            if getattr(self, key) and (self.packed or self.path):
                raise ValueError(
                    f"data.{key} is given, but {given[0]} has its own splits and ids; leave "
                    f"data.{key} out, or give it to clew data"
                )


class TokenData(Section):
    """Text, packed into one stream of tokens."""

    paths: ClassVar[tuple[str, ...]] = ("dataset", "packed", "tokenizer")
    kind: Literal["tokens"] = "tokens"
    """Text, packed once by `pretokenize` and then read as windows of tokens."""
    name: str | None = None
    """A named data set: a folder of text under `$CLEW_DATA`."""
    dataset: str | None = None
    """Instead of `name`: a text file, a folder, a JSON Lines or Parquet file with a text column,
    or, if the package `datasets` is installed, the name of a Hugging Face data set."""
    packed: str | None = None
    """Folder of the packed tokens. With `name` or `dataset`, the first run packs the text into it;
    without them, the folder must exist. Unset: a folder in the user's cache, named after the source
    and the tokenizer."""
    tokenizer: str | None = None
    """`bytes`, `bpe` (trained only on the data set's training share), or the path of a `tokenizers`
    JSON file. Unset: the tokenizer of `packed` if only that is given, else `bytes`. An end-of-text
    token separates documents; the characters `<|endoftext|>` within a document are ordinary
    text."""
    vocabulary_size: int = Field(default=32768, ge=258)
    """Size of a locally trained BPE vocabulary, including the end-of-text token."""
    text_column: str = "text"
    """Key or column that contains the text, in JSON Lines and Parquet files."""
    stride: int | None = Field(default=None, ge=1)
    """Tokens from the start of one training window to the start of the next; unset: the window's
    length. With a shorter stride, windows overlap and an epoch is longer."""
    max_chunks: int | None = Field(default=None, ge=1)
    """Pack only this many windows of `model.max_seq_len` tokens; unset: everything."""
    num_proc: int = Field(default=1, ge=1)
    """Number of processes that tokenize."""
    valid_fraction: float = Field(default=0.05, ge=0, lt=1)
    """Share of the stream used for validation: the part just before the test share."""
    test_fraction: float = Field(default=0.05, ge=0, lt=1)
    """Share of the stream used for testing: its end."""

    @property
    def source(self) -> str:
        return self.name or self.dataset or self.packed or ""

    def _check(self) -> None:
        if self.name is not None and self.dataset is not None:
            raise ValueError("data.name and data.dataset are both given; give one of them")
        if not self.source:
            raise ValueError(
                "none of data.name, data.dataset and data.packed is given; name a data set under "
                "$CLEW_DATA, a text file or folder, or a folder written by pretokenize"
            )
        if self.valid_fraction + self.test_fraction >= 1:
            raise ValueError(
                f"valid_fraction {self.valid_fraction} + test_fraction {self.test_fraction} leave "
                "nothing to train on; their sum must be below 1"
            )


class PackSettings(Section):
    """Settings of a packed corpus."""

    dataset: str
    """Text file, folder, JSON Lines or Parquet file, or the name of a text under $CLEW_DATA or on
    Hugging Face."""
    chunk_size: int = Field(default=32768, ge=1)
    """Number of tokens per window."""
    tokenizer: str = "bytes"
    """Either bytes, bpe, or a tokenizers JSON file."""
    vocabulary_size: int = Field(default=32768, ge=258)
    """Size of a locally trained BPE vocabulary."""
    text_column: str = "text"
    """Key or column that holds the text."""
    max_chunks: int | None = Field(default=None, ge=1)
    """Stop after this many windows."""
    held_out_fraction: float = Field(default=0.1, ge=0, lt=1)
    """Share at the end of the text that is not used to train a BPE vocabulary."""

    @property
    def most_tokens(self) -> int | None:
        """Tokens of `max_chunks` windows and one more as the last target; None: no limit."""
        return None if self.max_chunks is None else self.max_chunks * self.chunk_size + 1


def looked_up_in(folder: str, data: "DataConfig") -> "DataConfig":
    """Return data whose relative paths start in `folder`, if they exist there and not here."""
    found = {
        name: os.path.join(folder, given)
        for name in data.paths
        if (given := getattr(data, name))
        and not os.path.exists(given)
        and os.path.exists(os.path.join(folder, given))
    }
    return data.model_copy(update=found)


def require_shared(data: "DataConfig", allowed: str | None = None) -> None:
    """Refuse files outside the `allowed` folders, by default those of `CLEW_ONLY_DATA_IN` if set.

    The dashboard sets it for people who sign in: a model names its data, so whoever made it could
    let them read any file of the server, or write next to it. A file need not exist to be refused:
    it can be one in a zip file.
    """
    allowed = os.environ.get(ONLY_DATA_VARIABLE) if allowed is None else allowed
    if allowed is None:
        return
    for name in data.paths:
        given = getattr(data, name)
        if given and not _is_no_file(name, given) and not is_in_one_of(given, allowed):
            raise ConfigError(
                f"data.{name} is not in ${DATA_VARIABLE}, and people who sign in read only data "
                "there; put the data set into that folder, or use the command line"
            )


def _is_no_file(name: str, given: str) -> bool:
    """Whether a value names a kind of tokenizer, or a data set of Hugging Face."""
    path = expanded(given)
    is_here = path.is_absolute() or os.path.lexists(path.parts[0] if path.parts else "")
    return given in {"bytes", "bpe"} if name == "tokenizer" else name == "dataset" and not is_here


DataConfig = Annotated[TripleData | TokenData | ImageSequenceData, Field(discriminator="kind")]
