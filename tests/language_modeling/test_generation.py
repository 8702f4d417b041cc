"""Text generation token by token: sampling, saved states, and text of single tokens."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from clew.config.eigenstate import EigenstateLMModel
from clew.errors import CheckpointError, DataError
from clew.language_modeling.model import EigenstateLM, Sampling, TextState, read_text, write_text
from clew.language_modeling.tokenizers import ByteTokenizer, FileTokenizer, Tokenizer, train_bpe
from clew.language_modeling.writer import PausedText, TextPieces, read_paused

VOCABULARY = 13
END = 12
FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "all": {"convolution_width": 3, "resonance": 0.5, "num_gates": 4},
    "documents": {"convolution_width": 3, "reset_at_documents": True},
}
SENTENCE = "Grüße, 世界! 🙂 naïve\n"


def build(**options: Any) -> EigenstateLM:
    sizes = {"d_model": 16, "n_layers": 2, "num_eigenstates": 8, "num_heads": 2, "max_seq_len": 64}
    torch.manual_seed(0)
    model = EigenstateLM(VOCABULARY, EigenstateLMModel(**(sizes | options)), end_of_text=END)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return model.double().eval()


def prompt(length: int = 9) -> Tensor:
    return torch.randint(VOCABULARY, (1, length), generator=torch.Generator().manual_seed(3))


def nucleus(probabilities: Tensor, top_p: float) -> Tensor:
    """Return the probabilities of the smallest set of likeliest tokens with this total."""
    kept, total = torch.zeros_like(probabilities), 0.0
    for token in sorted(range(len(kept)), key=lambda t: -float(probabilities[t])):
        if total >= top_p:
            break
        kept[token] = probabilities[token]
        total += float(probabilities[token])
    return kept / kept.sum()


def written_by_full_passes(model: EigenstateLM, tokens: Tensor, count: int, seed: int) -> list[int]:
    """Generate by running the whole text through the parallel form for each token."""
    generator, drawn = torch.Generator().manual_seed(seed), []
    for _ in range(count):
        logits = model.logits(model(tokens))[0, -1].detach().float()
        kept = nucleus(torch.softmax(logits / 0.8, dim=-1), 0.9)
        token = torch.multinomial(kept.unsqueeze(0), 1, generator=generator)
        tokens = torch.cat([tokens, token], dim=1)
        drawn.append(int(token))
    return drawn


def write(model: EigenstateLM, state: TextState, count: int, generator: torch.Generator) -> Any:
    """Return tokens and the state after them."""
    drawn = []
    for token, after in write_text(model, state, Sampling(0.8, top_p=0.9), generator):
        drawn.append(int(token))
        if len(drawn) == count:
            return drawn, after
    raise AssertionError


@pytest.mark.parametrize("form", FORMS)
def test_tokens_are_those_of_full_passes_over_the_whole_text(form: str) -> None:
    model = build(**FORMS[form])
    expected = written_by_full_passes(model, prompt(), 30, seed=5)
    assert len(set(expected)) > 4
    for segment in (1, 4, 100):
        state = read_text(model, prompt(), segment=segment)
        drawn, _ = write(model, state, 30, torch.Generator().manual_seed(5))
        assert drawn == expected
        other, _ = write(model, state, 30, torch.Generator().manual_seed(6))
        assert other != drawn


def test_only_the_nucleus_is_drawn_from() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]])).expand(5000, 4)
    generator = torch.Generator().manual_seed(0)
    drawn = Sampling(top_p=0.75).draw(logits, generator).flatten()
    share = torch.bincount(drawn, minlength=4) / 5000
    expected = torch.tensor([0.625, 0.375, 0.0, 0.0])
    torch.testing.assert_close(share, expected, atol=0.03, rtol=0)
    assert set(Sampling(top_p=1e-9).draw(logits, generator).flatten().tolist()) == {0}
    assert set(Sampling(0.0).draw(logits, generator).flatten().tolist()) == {0}


@pytest.mark.parametrize(
    ("form", "place"),
    [(form, place) for n, form in enumerate(FORMS) for place in (1, 2, 7, 30)[n % 2 :: 2]],
)
def test_a_text_that_was_put_aside_goes_on_as_if_it_had_not(
    form: str, place: int, tmp_path: Path
) -> None:
    """Each form is tested at two places, and each place with at least one form."""
    model, path = build(**FORMS[form]).float(), tmp_path / "state"
    generator = torch.Generator().manual_seed(5)
    whole, end = write(model, read_text(model, prompt()), 40, generator)
    generator.manual_seed(5)
    first, state = write(model, read_text(model, prompt()), place, generator)
    shown = torch.tensor([1, 2, 3])
    PausedText(state, generator.get_state(), shown, 2).write(path, "weights")
    found = read_paused(path, model, "weights")
    assert (found.tokens.tolist(), found.num_shown) == ([1, 2, 3], 2)
    generator.set_state(found.draws)
    rest, after = write(model, found.state, 40 - place, generator)
    assert first + rest == whole
    assert torch.equal(after.hidden, end.hidden)


def test_a_state_of_another_model_or_none_is_refused(tmp_path: Path) -> None:
    model, path = build().float(), tmp_path / "state"
    state = read_text(model, prompt())
    paused = PausedText(state, torch.Generator().get_state(), torch.tensor([1]), 1)
    paused.write(path, "one")
    with pytest.raises(CheckpointError, match="model with weights 'one', but this model has two"):
        read_paused(path, model, "two")
    tensors = load_file(path)
    save_file(tensors, tmp_path / "other")
    with pytest.raises(DataError, match="not the state of a text"):
        read_paused(tmp_path / "other", model, "one")
    whole = dict(tensors)
    tensors.pop(".state.carried.layers[0].eigenstates")
    said = {"clew.text_state": "2", "clew.weights": "one"}
    save_file(tensors, tmp_path / "torn", metadata=said)
    with pytest.raises(DataError, match="damaged"):
        read_paused(tmp_path / "torn", model, "one")
    for change in (
        {".draws": torch.zeros_like(tensors[".draws"])},
        {".tokens": torch.tensor([10_000])},
        {".num_shown": torch.tensor(7)},
        {".state.hidden": torch.full_like(tensors[".state.hidden"], math.nan)},
    ):
        save_file(whole | change, tmp_path / "changed", metadata=said)
        with pytest.raises(DataError, match="values that are not valid for this model"):
            read_paused(tmp_path / "changed", model, "one")
    (tmp_path / "text").write_text("once upon a time, there was a text")
    for name in ("text", "nothing"):
        with pytest.raises(DataError, match="not a readable state"):
            read_paused(tmp_path / name, model, "one")


@pytest.fixture(scope="module")
def bpe(tmp_path_factory: pytest.TempPathFactory) -> FileTokenizer:
    path = tmp_path_factory.mktemp("bpe") / "tokenizer.json"
    train_bpe(iter([SENTENCE * 20]), 300, path)
    return FileTokenizer(path)


@pytest.mark.parametrize("kind", ["bytes", "bpe"])
def test_pieces_of_text_are_the_text_of_all_tokens(kind: str, bpe: FileTokenizer) -> None:
    tokenizer: Tokenizer = ByteTokenizer() if kind == "bytes" else bpe
    generator = np.random.default_rng(0)
    end = [tokenizer.end_of_text]
    broken = generator.integers(0, tokenizer.vocabulary_size, 300).tolist()
    for tokens in (tokenizer.encode((SENTENCE * 3).encode()).tolist(), broken, [*end, 65, *end]):
        before, after = tokens[:7], tokens[7:]
        pieces = TextPieces.after(tokenizer, np.array(before))
        found = []
        for token in after:
            found.append(pieces.add(token))
            # In the form of a state file.
            pieces = TextPieces(tokenizer, pieces.tokens, pieces.num_shown)
        found.append(pieces.rest())
        shown = tokenizer.decode(np.array(before)) + "".join(found)
        if tokens is not broken:
            assert shown == tokenizer.decode(np.array(tokens))
        assert "".join(found) == written_at_once(tokenizer, before, after)


def written_at_once(tokenizer: Tokenizer, before: list[int], after: list[int]) -> str:
    """Return the text that tokens add to the text of those before them."""
    whole = tokenizer.decode(np.array(before[-4:] + after, dtype=np.int64))
    return whole[len(tokenizer.decode(np.array(before[-4:], dtype=np.int64))) :]


def test_no_piece_ends_within_a_character() -> None:
    pieces = TextPieces(ByteTokenizer())
    found = [pieces.add(byte) for byte in "a世b".encode()]
    assert found == ["a", "", "", "世", "b"]
    pieces.add("世".encode()[0])
    assert pieces.rest() == "\N{REPLACEMENT CHARACTER}"


def words(folder: Path, model: tokenizers.models.Model) -> FileTokenizer:
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return FileTokenizer(folder / "tokenizer.json")


def letters_tokenizer(folder: Path) -> FileTokenizer:
    """Return a tokenizer that skips unknown text."""
    return words(folder, tokenizers.models.BPE({"a": 0, "b": 1, "c": 2}, []))


def test_what_a_vocabulary_lacks_is_found(bpe: FileTokenizer, tmp_path: Path) -> None:
    known = {"green": 0, "bottles": 1, "?": 2}
    with_unknown = words(tmp_path, tokenizers.models.WordLevel(known, unk_token="?"))
    assert with_unknown.first_unknown("green  bottles\n") is None
    assert with_unknown.first_unknown("green walls and bottles") == "walls"
    without = letters_tokenizer(tmp_path)
    assert without.first_unknown("ab c\t") is None
    assert without.first_unknown("ab ç") == "ç"
    assert bpe.first_unknown(SENTENCE + "λ\x00") is None
    assert ByteTokenizer().first_unknown(SENTENCE) is None
