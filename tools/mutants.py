"""Mutation testing by hand: draws changes of the rooms that count and decide, and lists those that no test notices.

    nice python tools/mutants.py --mutants 120 --seed 1

Each mutant is one change of one expression, tried in a copy of the tree: the mutated module's doctests and the tests of
its room run until the first failure (`--also` adds test folders that run for what survives them). A mutant that outlasts
`--limit` seconds counts as noticed. A survivor is printed with its line and its change: kill it with a test, or say why
the two programs are the same one.
"""

import argparse
import ast
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("formulas", "decide", "memory", "records", "telemetry")
SWAPS: dict[type, str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.Is: "is not",
    ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in", ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*",
    ast.FloorDiv: "*", ast.Mod: "*", ast.Pow: "*", ast.And: "or", ast.Or: "and",
}  # fmt: skip
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any", "ceil": "floor", "floor": "ceil"}


@dataclass(frozen=True)
class Mutant:
    """One change: `module` with the characters `start` to `end` replaced by `new`."""

    module: Path
    line: int
    start: int
    end: int
    old: str
    new: str

    def applied(self) -> str:
        """The module's text with the change."""
        data = (ROOT / self.module).read_bytes()
        return (data[: self.start] + self.new.encode() + data[self.end :]).decode()

    def __str__(self) -> str:
        old, new = (" ".join(text.split()) for text in (self.old, self.new))
        return f"{self.module}:{self.line}: {old}  ->  {new}"


def mutants_of(module: Path) -> Iterator[Mutant]:
    """Every mutant of a module: of comparisons, arithmetic, connectives, negations, numbers, truths and extremes."""
    data = (ROOT / module).read_bytes()
    starts = [0]
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def span(node: ast.expr) -> tuple[int, int]:
        return (
            starts[node.lineno - 1] + node.col_offset,
            starts[(node.end_lineno or 1) - 1] + (node.end_col_offset or 0),
        )

    for node in _computed(ast.parse(data)):
        for left, op, right in _operators(node):
            a, b = span(left)[1], span(right)[0]
            if type(op) in SWAPS and not set(b"()#") & set(data[a:b]):  # nothing but it and blanks stands there
                yield Mutant(module, left.lineno, a, b, data[a:b].decode(), f" {SWAPS[type(op)]} ")
        for whole, of in _replaced(node):
            a, b = span(whole)
            old = data[a:b].decode()
            yield Mutant(module, whole.lineno, a, b, old, of(old))


def _operators(node: ast.AST) -> list[tuple[ast.expr, ast.AST, ast.expr]]:
    """The operators of a node, each between two operands."""
    if isinstance(node, ast.Compare):
        return list(zip([node.left, *node.comparators], node.ops, node.comparators, strict=False))
    if isinstance(node, ast.BinOp):
        return [(node.left, node.op, node.right)]
    return [(node.values[0], node.op, node.values[1])] if isinstance(node, ast.BoolOp) else []


def _replaced(node: ast.AST) -> Iterator[tuple[ast.expr, Callable[[str], str]]]:
    """Expressions that a mutant writes anew, each with how."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node, lambda old: old.removeprefix("not").lstrip()
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield node, lambda _, new=not node.value: str(new)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield node, lambda _, new=node.value + 1: repr(new)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
        name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
        if name in CALLS:
            yield node.func, lambda old, name=name: old.removesuffix(name) + CALLS[name]


def _computed(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes that compute: no annotations, and nothing that is there for a type checker alone."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "type_params"):
            continue
        for node in value if isinstance(value, list) else [value]:
            if isinstance(node, ast.AST) and "TYPE_CHECKING" not in ast.dump(node)[:60]:
                yield node
                yield from _computed(node)


def copied(to: Path) -> None:
    """Copy the tree, as git knows it, to a folder of its own."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)  # noqa: S607
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)


def noticed(tree: Path, paths: list[str], limit_s: float) -> str | None:
    """What noticed a change in `tree`: the first test that fails, the clock, or nothing."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header"]
    command += ["-m", "not slow and not engine and not model and not transformers", "--tb=no", *paths]
    env = os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    run = subprocess.Popen(  # noqa: S603
        command, cwd=tree, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        out, _ = run.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(run.pid, signal.SIGKILL)
        run.communicate()
        return f"took more than {limit_s:g} s"
    if run.returncode in (0, 5):
        return None
    failed = [line for line in out.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0] if failed else f"exit {run.returncode}: {out.strip().splitlines()[-1:]}"


def main() -> None:
    """Draw mutants, try each, print what lives."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutants", type=int, default=120)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rooms", default=",".join(ROOMS))
    parser.add_argument("--also", nargs="*", default=[], help="tests that run for what its room's tests let live")
    parser.add_argument("--limit", type=float, default=300, help="seconds for the tests of one mutant")
    parser.add_argument("--seconds", type=float, default=10800, help="no mutant begins after so long")
    args = parser.parse_args()
    began, rooms = time.monotonic(), args.rooms.split(",")
    drawn = {room: [m for path in sorted((ROOT / "specplan" / room).glob("**/*.py"))
                    for m in mutants_of(path.relative_to(ROOT))] for room in rooms}  # fmt: skip
    rng = random.Random(args.seed)
    for room in rooms:
        rng.shuffle(drawn[room])
    # Rooms take turns, so that a run cut short has drawn from each.
    chosen = [drawn[rooms[i % len(rooms)]].pop() for i in range(args.mutants)]
    print(f"{args.mutants} of {sum(map(len, drawn.values())) + args.mutants} mutants, seed {args.seed}", flush=True)
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        copied(tree)
        for mutant in chosen:
            if time.monotonic() - began > args.seconds:
                break
            room = mutant.module.parts[1]
            (tree / mutant.module).write_text(mutant.applied())
            found = noticed(tree, [str(mutant.module), f"tests/{room}"], args.limit)
            if found is None and args.also:
                found = noticed(tree, args.also, args.limit)
            shutil.copy2(ROOT / mutant.module, tree / mutant.module)
            counts["noticed" if found else "alive"] += 1
            print(
                f"{'noticed' if found else 'ALIVE  '}  {mutant}" + (f"   [{found[:140]}]" if found else ""), flush=True
            )
    tried = counts.total()
    print(f"{tried} tried, {counts['alive']} alive, {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
