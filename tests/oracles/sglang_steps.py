"""SGLang 0.5's scheduler as plain lists of objects: pages of one token, no kept prefixes, one step per unit of time.

Written from the rules alone, with a queue that is a list; the product's loop works on flat arrays.
"""

from dataclasses import dataclass, field

CLIP, HEADROOM, MAX_PREFILL = 4096, 20, 16384
FIRST, LEAST = 0.7, 0.7 * 0.14
FALL = (FIRST - LEAST) / 600


@dataclass
class Request:
    name: int
    arrival: int
    prompt: int
    output: int
    drafts: list[int]
    accepts: list[int]
    computed: int = 0
    emitted: int = 0
    held: int = 0
    pending: int = 0
    drawn: int = 0
    verified: int = 0
    chunked: bool = False

    @property
    def known(self) -> int:
        return self.prompt + self.emitted

    @property
    def left(self) -> int:
        return min(self.output - self.emitted, CLIP)


@dataclass
class Server:
    pool: int
    seqs: int
    chunk: int
    kappa: int
    requests: list[Request]
    waiting: list[Request] = field(default_factory=list)
    running: list[Request] = field(default_factory=list)
    ratio: float = FIRST
    full: bool = False

    @property
    def free(self) -> int:
        return self.pool - sum(r.held for r in self.requests)

    def prompts(self) -> list[tuple[Request, int]]:
        cut = next((r for r in self.running if r.chunked), None)
        if cut is None and (self.full or not self.waiting):
            return []
        batch: list[tuple[Request, int]] = []
        expected = sum(r.left for r in self.running if r is not cut) * self.ratio
        inputs, chunk = MAX_PREFILL, self.chunk
        if cut is not None:
            left = cut.known - cut.computed
            room = min(chunk, int(self.free - expected))
            tokens = min(left, room if room > 0 else min(chunk, self.free))
            if tokens <= 0:
                return []
            cut.held += tokens
            batch.append((cut, tokens))
            if tokens < left:
                return batch
            inputs, chunk = inputs - tokens, chunk - tokens
            expected += cut.left
        while self.waiting and inputs > 0 and chunk > 0:
            r = self.waiting[0]
            if self.free - expected <= 0 or len(self.running) >= self.seqs or r.known + r.left >= self.free - expected:
                self.full = True
                break
            if batch and r.known >= inputs:
                break
            tokens = min(r.known, chunk)
            self.running.append(self.waiting.pop(0))
            r.held, r.computed = tokens, 0
            batch.append((r, tokens))
            inputs, chunk = inputs - tokens, chunk - tokens
            if tokens == r.known:
                expected += r.left
        return batch

    def decodes(self) -> list[tuple[Request, int]]:
        if sum(max(r.known + r.pending - r.held, 0) for r in self.running if not r.chunked) > self.free:
            first = True
            while len(self.running) > 1 and (first or self.free < len(self.running) * HEADROOM):
                first = False
                ranked = sorted(self.running, key=lambda r: (r.emitted, -r.prompt), reverse=True)
                gone = ranked[-1]
                self.running.remove(gone)
                gone.held = gone.computed = gone.pending = 0
                self.waiting.append(gone)
            decoded = sum(r.emitted for r in self.running) + HEADROOM * len(self.running)
            self.ratio, self.full = min(1.0, decoded / sum(r.output for r in self.running)), False
        else:
            self.ratio = max(self.ratio - FALL, LEAST)
        batch = [(r, r.known + r.pending - r.computed) for r in self.running if not r.chunked]
        for r, _ in batch:
            r.held = max(r.held, r.known + r.pending)
        return batch

    def run(self) -> list[tuple[int, dict[int, int], int, dict[int, int]]]:
        """(time, tokens by request, free tokens, emitted tokens by request) of each step."""
        log, now, coming = [], 0, sorted(self.requests, key=lambda r: r.arrival)
        while coming or self.waiting or self.running:
            while coming and coming[0].arrival <= now:
                self.waiting.append(coming.pop(0))
            if not self.waiting and not self.running:
                now = coming[0].arrival
                continue
            if not self.running:
                self.ratio, self.full = FIRST, False
            batch = self.prompts() or self.decodes()
            free, given = self.free, {r.name: tokens for r, tokens in batch}
            emitted: dict[int, int] = {}
            for r, tokens in batch:
                drafts = max(r.computed + tokens - r.known, 0)
                r.computed += tokens
                r.chunked = r.computed < r.known
                r.pending = 0
                if r.chunked:
                    if self.kappa:
                        r.drawn += 1
                    continue
                new = 1
                if drafts:
                    taken = min(r.accepts[r.verified % len(r.accepts)], drafts)
                    r.verified += 1
                    r.computed -= drafts - taken
                    new += taken
                new = min(new, r.output - r.emitted)
                r.emitted += new
                emitted[r.name] = new
                if r.emitted >= r.output:
                    self.running.remove(r)
                    r.held, self.full = 0, False
                elif self.kappa:
                    r.pending = r.drafts[r.drawn % len(r.drafts)]
                    r.drawn += 1
            log.append((now, given, free, emitted))
            now += 1
        return log
