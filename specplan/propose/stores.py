"""Shared stores by namespace: what one tenant's requests teach a proposer never reaches another's.

A store is a proposer whose drafts draw on more than the asking request (suffix decoding's response tree, an n-gram
trie). Each key (tenant, model, tokenizer) has its own; no call crosses a key.

Retention: a store lives until `drop` of its key, or until the total is over `max_bytes` and it is the one that was
unused for longest among those without an active request. Within a store its own rule evicts. Nothing is written to
disk, so nothing outlives the process.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from specplan.errors import InputError
from specplan.propose.protocol import Draft, Proposer, Tokens

_P = TypeVar("_P", bound=Proposer)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class StoreKey:
    """Whose text a store holds, and in which token ids it is written.

    Attributes
    ----------
    tenant : str
        Who may see drafts made of it.
    model : str
        Whose outputs they are.
    tokenizer : str
        What the ids mean; a fingerprint rather than a name where names are reused.
    """

    tenant: str
    model: str
    tokenizer: str

    def __post_init__(self) -> None:
        for name in ("tenant", "model", "tokenizer"):
            if not getattr(self, name):
                raise InputError(f"a store's {name} is empty; stores are keyed by tenant, model and tokenizer")


class Stores(Generic[_P]):
    """One proposer per key under a common bound in bytes.

    Parameters
    ----------
    build : callable
        Makes the proposer of a new key.
    max_bytes : int or None
        Bound on the sum of the stores' `memory_bytes`, checked when a request starts and when one stops; None for none.
        Stores with active requests are never evicted, so a bound also needs one per store (`max_shared_bytes` of a
        suffix cache, a trie's capacity) to hold at every moment.

    Examples
    --------
    >>> from specplan.propose.suffix import SuffixCache, SuffixProposer
    >>> stores = Stores(lambda key: SuffixProposer(SuffixCache(max_tree_depth=24)))
    >>> ours = StoreKey(tenant="a", model="m", tokenizer="t")
    >>> theirs = StoreKey(tenant="b", model="m", tokenizer="t")
    >>> for key, prompt in ((ours, [9]), (theirs, [7])):
    ...     stores.start_request(key, "r", prompt)
    >>> stores.extend(ours, "r", [1, 2, 3, 4])
    >>> stores.extend(theirs, "r", [1, 2])
    >>> stores.propose(theirs, "r", 8).tokens
    ()
    """

    def __init__(self, build: Callable[[StoreKey], _P], *, max_bytes: int | None = None) -> None:
        self._build = build
        self.max_bytes = max_bytes
        self._stores: OrderedDict[StoreKey, _P] = OrderedDict()
        self._active: dict[StoreKey, set[Hashable]] = {}

    @property
    def keys(self) -> tuple[StoreKey, ...]:
        """Keys that have a store, the one unused for longest first."""
        return tuple(self._stores)

    def store(self, key: StoreKey) -> _P:
        """The store of a key; InputError if it has none (nothing started yet, dropped, or evicted)."""
        found = self._stores.get(key)
        if found is None:
            raise InputError(f"no store for {key}; a request must be started under this key first")
        self._stores.move_to_end(key)
        return found

    def start_request(self, key: StoreKey, request_id: Hashable, prompt: Tokens) -> None:
        """Begin a request under a key, whose store is made if need be."""
        if key not in self._stores:
            self._stores[key] = self._build(key)
            self._active[key] = set()
        self.store(key).start_request(request_id, prompt)
        self._active[key].add(request_id)
        self._evict()

    def extend(self, key: StoreKey, request_id: Hashable, tokens: Tokens) -> None:
        """Append emitted tokens to a request of this key."""
        self.store(key).extend(request_id, tokens)

    def propose(self, key: StoreKey, request_id: Hashable, limit: int) -> Draft:
        """Draft for a request of this key from this key's store alone."""
        return self.store(key).propose(request_id, limit)

    def propose_batch(self, asked: Sequence[tuple[StoreKey, Hashable, int]]) -> list[Draft]:
        """Drafts for requests of several keys, in order."""
        return [self.propose(key, request_id, limit) for key, request_id, limit in asked]

    def stop_request(self, key: StoreKey, request_id: Hashable) -> None:
        """End a request; what the store keeps of it is the store's rule."""
        self.store(key).stop_request(request_id)
        self._active[key].discard(request_id)
        self._evict()

    def drop(self, key: StoreKey) -> int:
        """Forget everything under a key, active requests included; the bytes that are freed.

        InputError if the key has no store.
        """
        freed = self.store(key).memory_bytes
        del self._stores[key]
        del self._active[key]
        return freed

    def _evict(self) -> None:
        if self.max_bytes is None:
            return
        total = self.memory_bytes
        for key in [k for k in self._stores if not self._active[k]]:
            if total <= self.max_bytes:
                return
            total -= self.drop(key)

    @property
    def memory_bytes(self) -> int:
        """Bytes of all stores."""
        return sum(store.memory_bytes for store in self._stores.values())

    def check_integrity(self) -> None:
        """Check every store, and that each active request is known to exactly its own."""
        for store in self._stores.values():
            store.check_integrity()
        if self._stores.keys() != self._active.keys():
            raise AssertionError("each store has its set of active requests")
