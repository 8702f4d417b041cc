"""Texts that are written together are those that are written alone, and none waits for another."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event, Semaphore
from typing import Any

import pytest
import torch

from clew.config.eigenstate import EigenstateLMModel
from clew.errors import ConfigError, NonFiniteLossError
from clew.language_modeling import subject as text_batch
from clew.language_modeling.model import CarriedState, EigenstateLM, Sampling
from clew.language_modeling.subject import TextBatch
from clew.language_modeling.tokenizers import ByteTokenizer
from clew.language_modeling.writer import TextModel, continuation
from clew.subject import Waiting, current_request

FORMS: dict[str, dict[str, Any]] = {
    "fixed": {},
    "gated": {"transition": "gated", "convolution_width": 4},
    "documents": {"convolution_width": 3, "reset_at_documents": True},
}
DRAWN = Sampling(0.8, top_p=0.9)


@dataclass(frozen=True)
class Asked:
    """What a thread asks for."""

    prompt: str
    max_tokens: int = 12
    sampling: Sampling = DRAWN
    seed: int = 0


class Damaged(Sampling):
    """Draws that fail as those from logits that are no numbers."""

    def draw(self, *_: Any) -> Any:
        raise NonFiniteLossError("no numbers")


class Watched(EigenstateLM):
    """A model that keeps the form of all it read, and calls `before` each time."""

    def __init__(self, **form: Any) -> None:
        torch.manual_seed(0)
        size, end = ByteTokenizer.vocabulary_size, ByteTokenizer.end_of_text
        config = EigenstateLMModel(d_model=16, n_layers=2, num_eigenstates=8, **form)
        super().__init__(size, config, end_of_text=end)
        for parameter in self.parameters():
            torch.nn.init.normal_(parameter, std=0.4)
        self.read: list[tuple[int, ...]] = []
        self.before: Callable[[], object] = lambda: None

    def advance(self, tokens: Any, state: CarriedState | None) -> Any:
        self.read.append(tuple(tokens.shape))
        self.before()
        return super().advance(tokens, state)


class Server(TextBatch):
    """A batch that is asked by threads, and says when it knows of a request."""

    def __init__(self, model: Watched, threads: ThreadPoolExecutor) -> None:
        self.model, self.alone = model, TextModel(model.double().eval(), ByteTokenizer())
        super().__init__(self.alone)
        self._threads, self._known = threads, Semaphore(0)
        model.read.clear()

    def _add(self, texts: Any) -> None:
        super()._add(texts)
        self._known.release()

    def ask(self, *prompts: str, like: Asked = Asked(""), by: Waiting | None = None) -> Future[Any]:
        def answer() -> list[str]:
            current_request.set(by)
            return self.continuations(
                prompts, max_tokens=like.max_tokens, sampling=like.sampling, seed=like.seed
            )

        answered = self._threads.submit(answer)
        self._known.acquire()
        return answered

    def written_alone(self, asked: Asked) -> str:
        return continuation(
            self.alone,
            asked.prompt,
            max_tokens=asked.max_tokens,
            sampling=asked.sampling,
            seed=asked.seed,
        )

    @property
    def most_together(self) -> int:
        return max(num_rows for num_rows, _ in self.model.read)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as pool:
        yield pool


@pytest.fixture(params=list(FORMS))
def any_server(request: pytest.FixtureRequest, threads: ThreadPoolExecutor) -> Server:
    return Server(Watched(**FORMS[request.param]), threads)


@pytest.fixture
def server(threads: ThreadPoolExecutor) -> Server:
    return Server(Watched(**FORMS["gated"]), threads)


def test_texts_written_together_are_those_written_alone(any_server: Server) -> None:
    asked = [
        Asked("What is it, my lord"),
        Asked("What is it, my lord", seed=1),
        Asked("To be", 30, Sampling(1.0)),
        Asked("a" * 300, 5, Sampling(0.0)),
        Asked("Grüße, 世界", 40, Sampling(1.5, top_p=0.5), 7),
        Asked("x", 1),
    ]
    expected = [any_server.written_alone(each) for each in asked]
    may_read = Event()
    any_server.model.before = may_read.wait
    answers = [any_server.ask(each.prompt, like=each) for each in asked]
    may_read.set()
    assert [answer.result() for answer in answers] == [[text] for text in expected]
    assert any_server.most_together == len(asked) - 1, "the last one needs no step"


def test_rows_of_a_request_are_written_together(server: Server) -> None:
    prompts = ["To be", "or not", "to be"]
    texts = server.ask(*prompts).result()
    assert texts == [server.written_alone(Asked(prompt)) for prompt in prompts]
    assert (3, 1) in server.model.read


def test_a_text_of_no_tokens_is_empty_and_its_prompt_is_checked(server: Server) -> None:
    nothing = {"max_tokens": 0, "sampling": Sampling(), "seed": 0}
    assert server.continuations(["a", "b"], **nothing) == ["", ""]  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        server.continuations(["a", ""], **nothing)  # type: ignore[arg-type]


def test_a_short_text_joins_a_long_one_and_leaves_first(server: Server) -> None:
    short: list[Future[Any]] = []

    def ask_once() -> None:
        if len(server.model.read) == 10 and not short:
            short.append(server.ask("b", like=Asked("b", 4)))

    server.model.before = ask_once
    assert server.ask("a", like=Asked("a", 50)).result() == [server.written_alone(Asked("a", 50))]
    rows = [num_rows for num_rows, _ in server.model.read[:51]]
    assert rows == [1] * 11 + [2] * 3 + [1] * 37
    assert short[0].result() == [server.written_alone(Asked("b", 4))]


def test_texts_are_written_while_a_long_prompt_is_read(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_batch, "SEGMENT", 8)
    may_read, long = Event(), Asked("a long prompt " * 20, 3)
    server.model.before = may_read.wait
    answers = [server.ask(long.prompt, like=long), server.ask("b", like=Asked("b", 3))]
    may_read.set()
    assert [answer.result() for answer in answers] == [
        [server.written_alone(each)] for each in (long, Asked("b", 3))
    ]
    assert server.model.read[:6] == [(1, 8), (2, 1), (1, 8), (1, 1), (1, 8), (1, 1)]


def test_at_most_so_many_texts_are_written_together(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_batch, "MOST_TEXTS", 2)
    prompts = [*"abcde"]
    texts = server.ask(*prompts).result()
    assert server.most_together == 2
    assert texts == [server.written_alone(Asked(prompt)) for prompt in prompts]


@pytest.mark.parametrize("num_read", [1, 5])
def test_the_text_of_a_client_that_left_ends(server: Server, num_read: int) -> None:
    """It ends while its prompt is read, or while it is written; the others go on."""
    client, may_read = Waiting(), Event()

    def leave() -> None:
        may_read.wait()
        client.is_over = client.is_over or len(server.model.read) > num_read

    server.model.before = leave
    stays = server.ask("a", like=Asked("a", 20))
    left = server.ask("b", like=Asked("b", 1000), by=client)
    may_read.set()
    with pytest.raises(InterruptedError):
        left.result()
    assert stays.result() == [server.written_alone(Asked("a", 20))]
    assert len(server.model.read) < 50


def test_ctrl_c_ends_the_text(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    may_read = Event()
    server.model.before = may_read.wait
    with monkeypatch.context() as patch:
        # A signal would do nothing where the tests were started in the background.
        patch.setattr(Future, "result", interrupted)
        with pytest.raises(KeyboardInterrupt):
            server.continuations(["a"], max_tokens=10_000, sampling=DRAWN, seed=0)
    may_read.set()
    assert server.ask("b").result() == [server.written_alone(Asked("b"))]
    assert server.most_together == 1


def test_a_model_that_fails_answers_everybody_and_is_asked_again(server: Server) -> None:
    may_read = Event()

    def fail() -> None:
        may_read.wait()
        if len(server.model.read) == 4:
            raise RuntimeError("out of memory")

    server.model.before = fail
    answers = [server.ask(prompt) for prompt in "ab"]
    may_read.set()
    for answer in answers:
        with pytest.raises(RuntimeError):
            answer.result()
    assert server.ask("c").result() == [server.written_alone(Asked("c"))]


def test_logits_that_are_no_numbers_end_only_their_own_text(server: Server) -> None:
    may_read = Event()
    server.model.before = may_read.wait
    good, bad = server.ask("a"), server.ask("b", like=Asked("b", sampling=Damaged()))
    may_read.set()
    with pytest.raises(NonFiniteLossError):
        bad.result()
    assert good.result() == [server.written_alone(Asked("a"))]
