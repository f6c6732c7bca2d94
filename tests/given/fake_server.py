"""A loopback server of OpenAI's API that behaves by a law: steps of known time, drafts of known fate, counters of vLLM.

Requests that overlap share steps. A step takes `law(batch, width)` seconds of a clock that runs `1 / speed` times as
fast as the wall's, and every fate is drawn by the request's seed, so that what it counts can be counted again by hand.
"""

import json
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def fates(seed: int, tokens: int, kappa: int, alpha: float) -> list[tuple[int, int]]:
    """(drafted, accepted) of each step of a request: drafts of `kappa`, cut by what is left of its tokens."""
    rng = random.Random(seed)  # noqa: S311 - coins, not keys
    left, found = tokens - 1, []
    while left > 0:
        accepted = 0
        while accepted < min(kappa, left - 1) and rng.random() < alpha:
            accepted += 1
        found.append((kappa, accepted))
        left -= accepted + 1
    return found


class FakeServer:
    """One model, drafting `kappa` tokens (0: none) that are accepted with probability `alpha` by the request's tag."""

    def __init__(
        self,
        *,
        kappa: int = 0,
        alpha: Callable[[str], float],
        law: Callable[[float, int], float],
        metrics: bool = True,
        quirk: str = "",
    ) -> None:
        self.kappa, self.alpha, self.law, self.metrics, self.quirk = kappa, alpha, law, metrics, quirk
        self.asked: list[dict[str, Any]] = []
        self.counts = dict.fromkeys(("drafts", "drafted", "accepted", "tokens", "steps", "iterations", "prefills"), 0)
        self.at: list[int] = [0] * max(kappa, 1)
        self.step_s = 0.0
        self.chunks = 0
        self.running: list[tuple[Iterator[tuple[int, int]], list[int], threading.Event]] = []
        self.lock = threading.Condition()
        self.stopped = False

    def loop(self) -> None:
        """Steps of all that run, until the end."""
        due = time.perf_counter()
        while not self.stopped:
            with self.lock:
                if not self.running:
                    self.lock.wait(0.05)
                    due = time.perf_counter()
                    continue
                batch = list(self.running)
            taken = [next(steps) for steps, _, _ in batch]
            step_s = self.law(len(batch), 1 + max(drafted for drafted, _ in taken))
            due += step_s
            time.sleep(max(due - time.perf_counter(), 0))
            with self.lock:
                self.counts["iterations"] += 1
                self.step_s += step_s * len(batch)
                for entry, (drafted, accepted) in zip(batch, taken, strict=True):
                    _, given, ready = entry
                    self.counts["steps"] += 1
                    self.counts["tokens"] += accepted + 1
                    if drafted:
                        self.counts["drafts"] += 1
                        self.counts["drafted"] += drafted
                        self.counts["accepted"] += accepted
                        for i in range(accepted):
                            self.at[i] += 1
                    given[0] += accepted + 1
                    given[1] -= accepted + 1
                    if given[1] <= 0:
                        self.running.remove(entry)
                    ready.set()

    def page(self) -> str:
        """The counters as vLLM prints them."""
        c, of = self.counts, "spec_decode_num_"
        rows: dict[str, float] = {
            "generation_tokens_total": c["tokens"], "inter_token_latency_seconds_count": c["steps"],
            "inter_token_latency_seconds_sum": self.step_s, "iteration_tokens_total_count": c["iterations"],
            "time_to_first_token_seconds_count": 0, "num_requests_running": len(self.running),
        }  # fmt: skip
        rows["generation_tokens_total"] += c["prefills"]
        if self.kappa:
            rows |= {f"{of}drafts_total": c["drafts"], f"{of}draft_tokens_total": c["drafted"],
                     f"{of}accepted_tokens_total": c["accepted"]}  # fmt: skip
        lines = [f'vllm:{name}{{model_name="m"}} {value}' for name, value in rows.items()]
        if self.kappa:
            name = f"vllm:{of}accepted_tokens_per_pos_total"
            lines += [f'{name}{{model_name="m",position="{i}"}} {n}' for i, n in enumerate(self.at)]
        return "\n".join(lines) + "\n"


def _handler(server: FakeServer) -> type[BaseHTTPRequestHandler]:  # noqa: C901 - one class
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def reply(self, status: int, body: str, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body.encode())))
            self.end_headers()
            self.wfile.write(body.encode())

        def do_GET(self) -> None:
            if self.path == "/v1/models":
                self.reply(200, json.dumps({"data": [{"id": "m"}]}), "application/json")
            elif self.path == "/metrics" and server.metrics:
                with server.lock:
                    self.reply(200, server.page(), "text/plain")
            else:
                self.reply(404, "{}", "application/json")

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            server.asked.append(body)
            if server.quirk == "error":
                self.reply(400, '{"error": "no chat template"}', "application/json")
                return
            kappa = 0 if body.get("speculative.n_max") == 0 else server.kappa
            prompt = body["messages"][0]["content"] if "messages" in body else str(body["prompt"])
            tokens = body["max_tokens"]
            steps = fates(body["seed"], tokens, kappa, server.alpha(prompt))
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            self.stream(tokens, steps, body)

        def chunk(self, **fields: object) -> None:
            server.chunks += bool(fields["choices"])
            self.wfile.write(f"data: {json.dumps(fields)}\n\n".encode())
            self.wfile.flush()

        def stream(self, tokens: int, steps: list[tuple[int, int]], body: Mapping[str, Any]) -> None:
            key = "delta" if "messages" in body else "text"

            def choice(text: str) -> list[dict[str, object]]:
                return [{"delta": {"content": text}} if key == "delta" else {"text": text}]

            given, ready = [1, tokens - 1], threading.Event()
            with server.lock:
                server.counts["prefills"] += 1
                self.chunk(id="1", choices=choice("a"), usage={"completion_tokens": 1})
                if steps:
                    server.running.append((iter(steps), given, ready))
                    server.lock.notify()
            seen = 1
            while seen < tokens:
                ready.wait()
                ready.clear()
                if given[0] > seen:
                    seen = given[0]
                    self.chunk(id="1", choices=choice("a"), usage={"completion_tokens": seen})
                if server.quirk == "breaks off":
                    return
            timings = {"predicted_n": tokens}
            if any(d for d, _ in steps):
                timings |= {"draft_n": sum(d for d, _ in steps), "draft_n_accepted": sum(a for _, a in steps)}
            self.chunk(id="1", choices=[], timings=timings, usage={"prompt_tokens": 10, "completion_tokens": tokens})
            self.wfile.write(b"data: [DONE]\n\n")

    return Handler


@contextmanager
def served(server: FakeServer) -> Iterator[str]:
    """Serve on a free port; yields the address."""
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), _handler(server))
    httpd.daemon_threads = True
    for work in (httpd.serve_forever, server.loop):
        threading.Thread(target=work, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{httpd.server_address[1]}"
    finally:
        server.stopped = True
        httpd.shutdown()
        httpd.server_close()
