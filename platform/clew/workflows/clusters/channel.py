"""Questions that units on a cluster ask, and answers of the process that handed them over."""

import asyncio
import itertools
from collections.abc import Callable
from typing import Any


class Desk:
    """Passes questions and answers on; Ray runs it as an actor beside the process that answers."""

    def __init__(self) -> None:
        self._questions: asyncio.Queue[tuple[int, str]] = asyncio.Queue()
        self._answers: dict[int, asyncio.Future[str]] = {}
        self._numbers = itertools.count()

    async def ask(self, question: str) -> str:
        """Return the answer to a question, once it is given."""
        number = next(self._numbers)
        self._answers[number] = asyncio.get_running_loop().create_future()
        await self._questions.put((number, question))
        return await self._answers[number]

    async def take(self) -> tuple[int, str]:
        """Return the next question with its number, once there is one."""
        return await self._questions.get()

    async def answer(self, number: int, text: str) -> None:
        """Answer a question."""
        self._answers.pop(number).set_result(text)


class ChannelLine:
    """A unit's end of the channel; it is handed over with the unit's arguments."""

    def __init__(self, desk: Any) -> None:
        self._desk = desk

    def ask(self, question: str) -> str:
        """Ask, and wait for the answer."""
        import ray

        return str(ray.get(self._desk.ask.remote(question)))


class Channel:
    """The answering end."""

    def __init__(self, ray: Any, desk: Any, answer: Callable[[str], str]) -> None:
        self._ray, self._desk, self._answer = ray, desk, answer
        self.next = desk.take.remote()
        """Reference of Ray to the next question."""

    @property
    def line(self) -> ChannelLine:
        """What a unit asks with."""
        return ChannelLine(self._desk)

    def answer(self) -> None:
        """Answer the question that came, and wait for the next."""
        number, question = self._ray.get(self.next)
        self._desk.answer.remote(number, self._answer(question))
        self.next = self._desk.take.remote()
