"""A proposer of a user's own: what followed the last token when it stood there before."""

from collections.abc import Hashable, Sequence

from specplan.propose.protocol import EMPTY, Draft, Tokens, limits_of


class LastToken:
    """Equal to n-grams of one token, most recent first, without filler."""

    def __init__(self) -> None:
        self.texts: dict[Hashable, list[int]] = {}

    def start_request(self, request_id: Hashable, prompt: Tokens) -> None:
        self.texts[request_id] = list(prompt)

    def extend(self, request_id: Hashable, tokens: Tokens) -> None:
        self.texts[request_id] += list(tokens)

    def propose(self, request_id: Hashable, limit: int) -> Draft:
        text = [int(t) for t in self.texts[request_id]]
        found = [i for i, t in enumerate(text[:-1]) if t == text[-1]]
        return Draft(tuple(text[found[-1] + 1 : found[-1] + 1 + limit])) if found else EMPTY

    def propose_batch(self, request_ids: Sequence[Hashable], limits: int | Sequence[int]) -> list[Draft]:
        return [self.propose(r, n) for r, n in zip(request_ids, limits_of(request_ids, limits), strict=True)]

    def stop_request(self, request_id: Hashable) -> None:
        del self.texts[request_id]

    def check_integrity(self) -> None:
        pass

    @property
    def memory_bytes(self) -> int:
        return 0
