"""The `specplan` command: a table of commands that are imported only when they are run."""

import codecs
import contextlib
import errno
import gc
import importlib
import importlib.util
import io
import os
import sys
import warnings
from typing import Any, Final, NoReturn

import typer
import typer.core

from specplan import __version__
from specplan.errors import InputError, MissingExtraError, ModelNote, SpecplanError
from specplan.files.text import near_misses, one_line

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    # name: (module:function, one line)
    "cost": ("specplan.cli.cost:cost", "What speculation costs for a target, a draft and a card."),
    "blocks": ("specplan.cli.blocks:blocks", "Predict the KV block count that vLLM or SGLang reports at start-up."),
    "plane": ("specplan.cli.plane:plane", "Draw the (alpha, c) plane: contours, ties, each source as a point."),
    "tune": ("specplan.cli.tune:tune", "Best kappa, and what a wrong one loses."),
    "tie": ("specplan.cli.tie:tie", "What one draft source must reach to equal another."),
    "compare": ("specplan.cli.compare:compare", "Step time and throughput of each source over batch and context."),
    "simulate": ("specplan.cli.simulate:simulate", "Serve a load in virtual time, with and without speculation."),
    "capacity": ("specplan.cli.capacity:capacity", "Cards, replicas and source that hold latency targets at a rate."),
    "schedule": ("specplan.cli.schedule:schedule", "Best kappa per batch, as the engine's configuration."),
    "validate": (
        "specplan.cli.validate:validate",
        "Published tables and start-up logs against predictions.",
    ),
    "measure": ("specplan.cli.measure:measure", "Run proposers and verifiers on a real model and measure alpha and c."),
    "bench": ("specplan.cli.bench:bench", "Measure step time of a model shape with random weights."),
    "calibrate": ("specplan.cli.calibrate:calibrate", "Measure this device and write a hardware profile."),
    "replay": ("specplan.cli.replay:replay", "Replay recorded tokens through draft sources, without a GPU."),
    "ingest": ("specplan.cli.ingest:ingest", "Read a running engine's metrics or logs."),
    "import": ("specplan.cli.import_:import_", "Turn a Hugging Face config or checkpoint folder into a model spec."),
    "architectures": ("specplan.cli.architectures:architectures", "List the architectures that can be counted."),
    "models": ("specplan.cli.models:models", "List the shipped model specs, or show one."),
    "hardware": ("specplan.cli.hardware:hardware", "List the shipped hardware profiles, or show one."),
    "engines": ("specplan.cli.engines:engines", "What is known of which engine version, since when, and how."),
    "page": ("specplan.cli.page:page", "One offline page with sliders: plane, batch, memory, capacity."),
    "explain": ("specplan.cli.explain:explain", "Formula, file and worked example of a symbol."),
    "schema": ("specplan.cli.schema:schema", "JSON Schema of a command's document."),
    "check-chapter": ("specplan.cli.check_chapter:check_chapter", "Every number of the chapter against specplan's."),
}


OPTIONAL: Final[dict[str, str]] = {
    **dict.fromkeys(("torch", "transformers", "accelerate", "gguf", "safetensors"), "harness"),
    **dict.fromkeys(("numba", "orjson", "zstandard", "pyarrow", "tokenizers", "jinja2"), "replay"),
    "prometheus_client": "ingest",
    "matplotlib": "plot",
    "scipy": "adaptive",
    "ray": "ray",
    "plotly": "page",
}
"""Packages of the extras: where one is missing, the error names the install line."""

_HELP: Final = {"help_option_names": ["-h", "--help"]}


def _is_built(target: str) -> bool:
    """Whether the command's module exists (found without importing it)."""
    return importlib.util.find_spec(target.partition(":")[0]) is not None


class _LazyGroup(typer.core.TyperGroup):
    """Lists commands from the table; imports one when it is run."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - the base class's signature
        return [name for name, (target, _) in COMMANDS.items() if _is_built(target)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - the base class's signature
        if cmd_name not in COMMANDS:
            return None
        return typer.core.TyperCommand(cmd_name, help=COMMANDS[cmd_name][1])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            near = near_misses(args[0], COMMANDS)
            raise InputError(f"no command {args[0]!r}{near or '; list them: specplan --help'}")
        name, stub, rest = super().resolve_command(ctx, args)
        return name, load(name) if stub is not None and name is not None else stub, rest


def load(name: str) -> Any:
    """The real command behind `name`."""
    module, _, function = COMMANDS[name][0].partition(":")
    from specplan.cli.help import HelpedCommand

    command = typer.Typer(add_completion=False, rich_markup_mode=None)
    names = {"help_option_names": [*_HELP["help_option_names"], "--help-all"]}
    command.command(name, cls=HelpedCommand, context_settings=names)(getattr(importlib.import_module(module), function))
    return typer.main.get_command(command)


app = typer.Typer(
    cls=_LazyGroup,
    no_args_is_help=True,
    add_completion=True,
    context_settings=_HELP,
    rich_markup_mode="rich",
    help="Plan speculative decoding before renting a GPU: costs, memory, break-even acceptance, and real measurements.",
)


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"specplan {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
) -> None:
    """Declare the options before the command."""


_ClickError: Final[Any] = typer.BadParameter.__mro__[2]
# Typer carries its own copy of click or uses the installed one, by version; its exported error leads to either.


def _read_value(error: Any, args: list[str]) -> str:
    """What stood on the line for the option that `error` is about, as ``, read 'x'``; empty where it is not found."""
    names = getattr(getattr(error, "param", None), "opts", ())
    for i, arg in enumerate(args):
        name, equals, value = arg.partition("=")
        if name in names and (equals or i + 1 < len(args)):
            return f", read {value if equals else args[i + 1]!r}"
    return ""


def _usage(error: Any, args: list[str]) -> str:
    """A usage error as one line that says what was read and where help is."""
    message = " ".join(error.format_message().split()).rstrip(".") + _read_value(error, args)
    context = getattr(error, "ctx", None)
    return message if context is None else f"{message} (see {context.command_path} --help)"


_FORMED: Final[set[str]] = set()


def _take_form(args: list[str]) -> list[str]:
    """The line without ``--quiet`` and ``--format FORM``, which hold for every command and are set here.

    (`calibrate` has a --format of its own, of numbers.)
    """
    from specplan.report.console import FORM, QUIET

    rest = [arg for arg in args if arg != "--quiet"]
    QUIET.set(len(rest) < len(args))
    FORM.set("table")
    if rest[:1] == ["calibrate"] or not any(arg.partition("=")[0] == "--format" for arg in rest):
        return rest
    i = next(i for i, arg in enumerate(rest) if arg.partition("=")[0] == "--format")
    _, equals, form = rest[i].partition("=")
    form = form if equals else next(iter(rest[i + 1 : i + 2]), "")
    if form not in ("table", "csv", "md", "json"):
        raise InputError(f"--format {form}: expected table, csv, md or json")
    FORM.set("table" if form == "json" else form)
    return [*rest[:i], *rest[i + (1 if equals else 2) :], *(["--json"] if form == "json" else [])]


def _run(args: list[str]) -> int:
    if _FORMED or any(a == "--quiet" or a.startswith("--format") for a in args):
        _FORMED.add("once")  # what one line sets, the next line of the same process sets back
        args = _take_form(args)
    args = args or ["--help"]
    try:
        code = app(args=args, prog_name="specplan", standalone_mode=False)
    except _ClickError as error:
        if error.format_message():  # empty when no command was given: the help has been shown
            typer.echo(f"specplan: {one_line(_usage(error, args))}", err=True)
        return int(error.exit_code)
    except typer.Exit as stop:
        return int(stop.exit_code)
    return code if isinstance(code, int) else 0


def _stop(message: str, code: int = 2) -> NoReturn:
    """End with one line on stderr: text from outside in it is escaped and cut."""
    with contextlib.suppress(OSError):
        typer.echo(f"specplan: {one_line(message)}", err=True)
    sys.exit(code)


def _unexpected(error: BaseException) -> str:
    """What to say of an error that nobody foresaw: a bug of ours, or an extension that gave up."""
    trace, where = error.__traceback__, ""
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_globals.get("__name__", "").startswith("specplan."):
            where = f" in {frame.f_globals['__name__']}, line {trace.tb_lineno}"
        trace = trace.tb_next
    return (
        f"unexpected {type(error).__name__}{where}: {str(error) or 'no message'}; this is a bug in specplan "
        f"{__version__}: please report this line and the command, and add --debug for the traceback"
    )


def _show_what_cannot_be_encoded(error: UnicodeError) -> tuple[str, int]:
    from specplan.report.console import replace_in

    return replace_in(error)


def _prepare_streams() -> None:
    """A terminal that lacks a sign gets its name; no output ends in an encoding error."""
    codecs.register_error("specplan", _show_what_cannot_be_encoded)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="specplan")


_SHOW: Final = warnings.showwarning


def _show(message: Any, category: type[Warning], *rest: Any, **more: Any) -> None:
    """A model's note as one line; other warnings as Python shows them."""
    if issubclass(category, ModelNote):
        typer.echo(f"specplan: assumed: {message}", err=True)
    else:
        _SHOW(message, category, *rest, **more)


def main(argv: list[str] | None = None) -> None:
    """Run the command line; every error is one line on stderr.

    Errors that a user can mend exit with 2, those that nobody foresaw with 70. ``--debug`` anywhere on the line shows
    the traceback instead, ``--offline`` forbids to ask the Hub.
    """
    # Start-up is a sixth shorter when imports are not searched for garbage and no pydantic plugins are looked for.
    gc.set_threshold(100_000, 50, 50)
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    warnings.simplefilter("always", ModelNote)
    warnings.showwarning = _show
    args = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in args
    if debug:
        args.remove("--debug")
    if "--offline" in args:
        args.remove("--offline")
        os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    _prepare_streams()
    try:
        code = _run(args)
        sys.stdout.flush()
        if argv is None:
            gc.freeze()  # the process ends here: a last search for garbage would take a quarter of a short command
        sys.exit(code)
    except (BrokenPipeError, SystemExit) as stop:
        # The reader left (| head): it has what it wanted. Rich turns a closed pipe into an exit with 1, which is a no.
        if not isinstance(stop, BrokenPipeError) and not isinstance(stop.__context__, BrokenPipeError):
            raise
        sys.stderr.close()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is still buffered has no reader
        sys.exit(0)
    except BaseException as error:
        if debug:
            raise
        _stop(*_said(error))


def _said(error: BaseException) -> tuple[str, int]:
    """The line and the exit code of an error."""
    if isinstance(error, SpecplanError):
        return str(error), 2
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return "interrupted", 130
    if isinstance(error, MemoryError):
        return "there is not enough memory for this; ask for less (a smaller --max, --cells, batch or context)", 2
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        name = "the output" if error.filename is None else error.filename
        with contextlib.suppress(OSError):
            sys.stdout.close()  # what it still holds cannot be written either
        return f"{name}: cannot be written: {error.strerror}", 2
    package = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if package in OPTIONAL:
        return str(MissingExtraError(package, extra=OPTIONAL[package])), 2
    return _unexpected(error), 70
