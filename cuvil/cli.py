"""The command line: arguments to a call of `cuvil.commands`, its result to JSON or text.

Results go to stdout, everything else (notes, progress, errors) to stderr.  Exit status: 0 done,
1 an error that the user can fix, 2 wrong usage, 3 a bug in Cuvil, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from cuvil import __version__, commands
from cuvil.errors import CuvilError
from cuvil.report import summary
from cuvil.report.operators import markdown
from cuvil.target.board import ACCURACIES

DONE, FAILED, USAGE, BUG, INTERRUPTED = 0, 1, 2, 3, 130
PROGRESS_EVERY_S = 1.0

Handler = Callable[[argparse.Namespace, "Progress"], Any]


class Progress:
    """Prints to stderr what is being done, whenever that has taken a second."""

    def __init__(self) -> None:
        self._text = ""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __call__(self, text: str) -> None:
        self._text = text
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Print nothing more."""
        self._stop.set()
        if self._thread:
            self._thread.join()

    def _watch(self) -> None:
        shown = before = ""
        while not self._stop.wait(PROGRESS_EVERY_S):
            text = self._text
            if text == before and text != shown:
                print(f"cuvil: {text} ...", file=sys.stderr, flush=True)
                shown = text
            before = text


class _Parser(argparse.ArgumentParser):
    """Errors in one line, in Cuvil's form."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        print(f"cuvil: error: {message}; see {self.prog} --help", file=sys.stderr)
        raise SystemExit(USAGE)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (`sys.argv` where None); returns the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["stage"]:
        return _guarded(lambda: _stage(arguments[1:]), "--debug" in arguments)
    parser = _parser()
    try:
        args = parser.parse_args(arguments)
    except SystemExit as stop:
        return int(stop.code or 0)
    if args.handler is None:
        parser.print_help(sys.stderr)
        return USAGE
    return _guarded(lambda: _run(args), getattr(args, "debug", False))


def _run(args: argparse.Namespace) -> int:
    progress = Progress()
    try:
        result = args.handler(args, progress)
    finally:
        progress.close()
    for note in result.get("notes", ()):
        print(f"note: {note}", file=sys.stderr)
    print(json.dumps(_finite(result), indent=2) if args.json else args.text(result), flush=True)
    return int(args.status(result))


def _guarded(run: Callable[[], int], debug: bool) -> int:
    """The exit status of `run`, its exceptions printed as one line each."""
    try:
        return run()
    except BrokenPipeError:  # the reader of stdout has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except KeyboardInterrupt:
        print("cuvil: interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        if debug:
            traceback.print_exc()
        message, status = _explained(error)
        print(f"cuvil: {' '.join(message.split())}", file=sys.stderr)
        return status


def _explained(error: Exception) -> tuple[str, int]:
    """What to say of an exception, and the exit status."""
    if isinstance(error, CuvilError):
        return f"error: {error}", FAILED
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"error: {error.filename}: {error.strerror}", FAILED
    what = f"internal error: {type(error).__name__}: {error}"
    return f"{what}; please report with a reproducer; run with --debug for the traceback", BUG


def _finite(value: Any) -> Any:
    """`value` with infinities and NaN, which JSON lacks, as None."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _stage(argv: Sequence[str]) -> int:
    from cuvil.scons import stage_command

    return stage_command.main([argument for argument in argv if argument != "--debug"])


# --- arguments ---


_SHAPE = r"[\w\s,]*"
_SHAPES = re.compile(rf"\[\s*(\[{_SHAPE}\]\s*(,\s*\[{_SHAPE}\]\s*)*)?\]")


def shape(text: str) -> tuple[str, commands.Binding]:
    """``NAME=D0,D1,...`` as the name and its sizes; a dimension that is no number is a name.

    ``NAME=[[D0,D1],[D0]]`` has the shape of each item of a sequence, ``NAME=null`` says that an optional is
    absent.
    """
    name, equals, dims = text.rpartition("=")
    given: list[commands.Shape | None] = []
    if _SHAPES.fullmatch(dims):
        given = [_sizes(item) for item in re.findall(rf"\[({_SHAPE})\]", dims[1:-1])]
    elif dims != "null":
        given = [_sizes(dims)]
    if not equals or not name or None in given:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no shape: write NAME=D0,D1,... with sizes or names, such as x=1,3,224,224;"
            " s=[[2,3],[4,3]] for a sequence, s=null for an optional that is absent"
        )
    if dims == "null":
        return name, None
    shapes = [item for item in given if item is not None]
    return name, shapes if dims.startswith("[") else shapes[0]


def _sizes(text: str) -> commands.Shape | None:
    """``D0,D1,...`` as sizes and names, None where it is something else."""
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    if not all(part.isdigit() or part.isidentifier() for part in parts):
        return None
    return tuple(int(part) if part.isdigit() else part for part in parts)


def value(text: str) -> tuple[str, Any]:
    """``NAME=VALUE`` as the name and the value in JSON: a number, a truth value, a text, or a list."""
    name, equals, given = text.partition("=")
    try:
        found = json.loads(given)
    except (ValueError, RecursionError):
        found = None
    if not equals or not name or found is None or isinstance(found, dict):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no value: write NAME=VALUE with a number or a list of numbers, such as rate=16000"
        )
    return name, found


def one_of(*names: str) -> Callable[[str], str]:
    """A type of argument that is one of `names`."""

    def chosen(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(names)}")
        return text

    return chosen


def positive(text: str) -> int:
    """A whole number from 1."""
    if not text.isdigit() or not 0 < int(text) < 10**9:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1")
    return int(text)


def _job(args: argparse.Namespace) -> commands.Job:
    return commands.Job(
        model=args.model,
        target=args.target,
        shapes=dict(args.shape),
        values=dict(args.value),
        io_format=args.io_format,
        quantization=args.quantization,
        calibration=args.calibration,
        threads=args.threads,
        accuracy=args.accuracy,
        tuned=args.tuned,
        keep=args.keep,
    )


def _model_options() -> _Parser:
    """The options of every command that takes a model."""
    options = _Parser(add_help=False)
    add = options.add_argument
    add("--model", type=Path, required=True, metavar="M.onnx", help="the model")
    add("--target", default="host", metavar="T", help="a profile's name or file, or a triple (host)")
    add(
        "--enable-quantization",
        dest="quantization",
        type=one_of("none", "int8", "profile"),
        default="profile",
        metavar="Q",
        help="arithmetic of all devices: int8, none, or profile for what the profile says (the default)",
    )
    add("--calibration", type=Path, metavar="FILE.npz", help="samples of the inputs, for int8")
    add(
        "--io-format",
        type=one_of("nchw", "nhwc"),
        default="nchw",
        metavar="F",
        help="layout of images at the interface: nchw as in the model (the default) or nhwc",
    )
    add(
        "--shape",
        type=shape,
        action="append",
        default=[],
        metavar="NAME=D0,D1,...",
        help="sizes, or names, of an input's dimensions; NAME=[[D0,...],...] for the items of a sequence,"
        " NAME=null for an absent optional; may be repeated",
    )
    add(
        "--value",
        type=value,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="the value of an input, which is then no input of the library; may be repeated",
    )
    add("--threads", type=positive, metavar="N", help="threads on each CPU; by default as the profile says")
    add(
        "--accuracy",
        type=one_of(*ACCURACIES),
        metavar="A",
        help="default, or strict for no algorithm that rounds more than what it computes is defined to; "
        "by default as the profile says",
    )
    add("--no-tuned", dest="tuned", action="store_false", help="plain loops instead of tuned kernels")
    add("--keep", type=Path, metavar="FOLDER", help="keep all artefacts there")
    return options


def _parser() -> argparse.ArgumentParser:
    common = _Parser(add_help=False)
    common.add_argument(
        "--debug", action="store_true", default=argparse.SUPPRESS, help="traceback of an error"
    )
    parser = _Parser(
        prog="cuvil", description="Compile ONNX models to small native libraries.", parents=[common]
    )
    parser.add_argument("--version", action="version", version=f"cuvil {__version__}")
    parser.set_defaults(handler=None)
    subparsers = parser.add_subparsers(metavar="COMMAND", title="commands")
    model = _model_options()

    def command(
        name: str,
        help: str,
        handler: Handler,
        text: Callable[[Any], str],
        *parents: _Parser,
        status: Callable[[Any], int] = lambda result: DONE,
    ) -> argparse.ArgumentParser:
        sub = subparsers.add_parser(name, help=help, description=f"{help}.", parents=[*parents, common])
        sub.add_argument("--json", action="store_true", help="print one JSON document")
        sub.set_defaults(handler=handler, text=text, status=status)
        return sub

    sub = command("compile", "Compile a model to a library", _compile, summary.compiled, model)
    sub.add_argument(
        "--output",
        type=Path,
        required=True,
        metavar="LIB.so",
        help="the library; an archive where it ends in .a",
    )
    command("cost", "Predict the latency of a model, kernel by kernel", _cost, summary.costed, model)
    command("partition", "Say which device runs what", _partition, summary.partitioned, model)
    sub = command(
        "verify",
        "Compare a model's library with onnxruntime",
        _verify,
        summary.verified,
        model,
        status=lambda result: DONE if result["good"] else FAILED,
    )
    sub.add_argument(
        "--data", type=Path, metavar="FILE.npz", help="samples of the inputs, their classes as label"
    )
    sub = command("bench", "Measure the latency of a model's library", _bench, summary.benchmarked, model)
    sub.add_argument("--data", type=Path, metavar="FILE.npz", help="samples of the inputs")
    sub = command("report", "Write an HTML page on a compiled model", _report, summary.reported, model)
    sub.add_argument("--output", type=Path, required=True, metavar="FILE.html", help="the page")
    command("operators", "List the operators that models may have, as Markdown", _operators, markdown)
    sub = command("targets", "List the profiles, or show one", _targets, summary.targets)
    sub.add_argument("--show", metavar="NAME", help="a profile with all that is derived, in SI units")
    sub = command("probe", "Write a profile of this machine", _probe, summary.probed)
    sub.add_argument(
        "--output", type=Path, metavar="FILE", help="the file (targets/host.yaml of the project)"
    )
    sub.add_argument(
        "--measure", action="store_true", help="measure peak rates and bandwidths, a few seconds"
    )
    return parser


# --- commands ---


def _compile(args: argparse.Namespace, progress: Progress) -> Any:
    return commands.compile_library(_job(args), args.output, progress)


def _cost(args: argparse.Namespace, progress: Progress) -> Any:
    return commands.cost(_job(args), progress)


def _partition(args: argparse.Namespace, progress: Progress) -> Any:
    return commands.partition(_job(args), progress)


def _verify(args: argparse.Namespace, progress: Progress) -> Any:
    return commands.verify(_job(args), args.data, progress)


def _bench(args: argparse.Namespace, progress: Progress) -> Any:
    return commands.bench(_job(args), args.data, progress)


def _report(args: argparse.Namespace, progress: Progress) -> Any:
    return commands.write_report(_job(args), args.output, progress)


def _operators(args: argparse.Namespace, progress: Progress) -> Any:
    return commands.operators()


def _targets(args: argparse.Namespace, progress: Progress) -> Any:
    return commands.show_target(args.show) if args.show is not None else commands.list_targets()


def _probe(args: argparse.Namespace, progress: Progress) -> Any:
    return commands.probe(args.output, args.measure, progress)
