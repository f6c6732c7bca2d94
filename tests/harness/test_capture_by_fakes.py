"""Graph capture where no card is: which card is current when what is made, and what is said when memory is short."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specplan.errors import InputError
from specplan.harness.pass_times import GraphedPass


class Model:
    """A model on the second of two cards, whose passes note the card that is current; they may run out of memory."""

    def __init__(self, seen: list[str], current: list[str], *, fails: bool = False) -> None:
        self.device = SimpleNamespace(type="cuda", index=1)
        self.seen, self.current, self.fails = seen, current, fails

    def new_cache(self, batch: int, capacity: int) -> Any:
        del capacity
        return SimpleNamespace(lengths=torch.zeros(batch), span=0)

    def __call__(self, *_: Any, **__: Any) -> torch.Tensor:
        self.seen.append(f"pass on {self.current[-1]}")
        if self.fails:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return torch.zeros(1)


@pytest.fixture
def current(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The stack of current cards, the first card below."""
    stack = ["card 0"]

    @contextmanager
    def device(of: Any) -> Iterator[None]:
        stack.append(f"card {of.index}")
        yield
        stack.pop()

    @contextmanager
    def nothing(*_: Any) -> Iterator[None]:
        yield

    stream = lambda: SimpleNamespace(card=stack[-1], wait_stream=lambda _: None)  # noqa: E731
    made = {"device": device, "Stream": stream, "current_stream": stream, "stream": nothing, "graph": nothing}
    for name, value in made.items():
        monkeypatch.setattr(torch.cuda, name, value)

    class Graph:
        def __init__(self) -> None:
            self.cards = [stack[-1]]

        def replay(self) -> None:
            self.cards.append(stack[-1])

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch, "zeros", lambda *a, _zeros=torch.zeros, **k: _zeros(*a, **(k | {"device": "cpu"})))
    return stack


def test_a_pass_is_captured_on_the_models_own_card(current: list[str]) -> None:
    seen: list[str] = []
    run = GraphedPass(Model(seen, current), width=2, batch=3, context_len=5)  # type: ignore[arg-type]
    assert run._graph is not None
    assert seen == ["pass on card 1"] * 4  # three that warm up, one that is captured
    run()
    assert run._graph.cards == ["card 1"] * 2  # type: ignore[attr-defined]  # made there, and replayed
    assert current == ["card 0"]


def test_memory_that_runs_out_in_a_capture_is_one_line(current: list[str]) -> None:
    with pytest.raises(InputError, match="capture a pass of 3 x 2 positions behind 5 tokens"):
        GraphedPass(Model([], current, fails=True), width=2, batch=3, context_len=5)  # type: ignore[arg-type]
