"""The command line: parse, dispatch, turn errors into exit codes. Nothing is decided here.

Options go before the script; parsing stops at SCRIPT, and everything after it is the script's.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loaderdoctor import __version__
from loaderdoctor.errors import EXIT_USAGE, LoaderdoctorError

if TYPE_CHECKING:
    from loaderdoctor.instrument.wire.protocol import ProfilerSchedule

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
SCRIPT_CONTEXT = {**CONTEXT, "allow_interspersed_args": False}
_GRID_TOKEN = re.compile(r"^[a-z][a-z0-9_]*=")

F = Callable[..., Any]


class Seconds(click.FloatRange):
    """A time from one second on; `nan` and `inf`, which FloatRange lets pass, are none."""

    def __init__(self) -> None:
        super().__init__(min=1)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        seconds: float = super().convert(value, param, ctx)
        if not math.isfinite(seconds):
            self.fail(f"{value!r} is not a time in seconds.", param, ctx)
        return seconds


class GridCommand(click.Command):
    """A command whose `--grid` takes several AXIS=VALUES words, up to the first other word."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        takes_value = {
            name
            for param in self.params
            if isinstance(param, click.Option) and not param.is_flag and not param.count
            for name in param.opts
        }
        spread: list[str] = []
        rest = list(args)
        while rest:
            word = rest.pop(0)
            name, _, first = word.partition("=")
            if name == "--grid":
                words = [first] if first else []
                while rest and _GRID_TOKEN.match(rest[0]):
                    words.append(rest.pop(0))
                if not words:
                    raise click.UsageError(
                        "--grid needs AXIS=VALUES, for example --grid num_workers=0,2,4", ctx
                    )
                spread += [x for w in words for x in ("--grid", w)]
            elif word == "--" or not word.startswith("-"):
                spread += [word, *rest]
                break
            else:
                spread.append(word)
                if word in takes_value and rest:
                    spread.append(rest.pop(0))
        return super().parse_args(ctx, spread)


def _output_options(command: F) -> F:
    command = click.option(
        "--json",
        "json_target",
        metavar="FILE",
        help="Write report.json to FILE too; '-' for stdout (the report then goes to stderr).",
    )(command)
    command = click.option(
        "-v",
        "--verbose",
        is_flag=True,
        help="Print the whole report: evidence, trials, warnings, how it was measured.",
    )(command)
    return click.option(
        "--output",
        type=click.Path(path_type=Path, file_okay=False),
        help="Run folder to write; by default loaderdoctor-runs/<time>-<name>/.",
    )(command)


def _profile_options(command: F) -> F:
    """torch.profiler's schedule; what is not given suits the step time found."""
    for option in (
        click.option("--wait", type=click.IntRange(min=0), help="Profiler schedule: idle steps."),
        click.option("--warmup", type=click.IntRange(min=0), help="Profiler schedule: warm-up."),
        click.option("--active", type=click.IntRange(min=1), help="Profiler schedule: recorded."),
        click.option(
            "--repeat", type=click.IntRange(min=1), default=1, help="Profiler schedule: cycles."
        ),
        click.option("--with-stack", is_flag=True, help="Record Python stacks in the trace."),
        click.option("--profile-memory", is_flag=True, help="Record allocations in the trace."),
    ):
        command = option(command)
    return command


def _profiler(options: dict[str, Any]) -> ProfilerSchedule:
    """Take the schedule's options out of `options`."""
    from loaderdoctor.instrument.wire.protocol import ProfilerSchedule

    return ProfilerSchedule(
        **{name: options.pop(name) for name in ProfilerSchedule.__struct_fields__}
    )


def _budget(default: int | None, what: str) -> Callable[[F], F]:
    return click.option(
        "--budget",
        "budget_s",
        type=Seconds(),
        default=default,
        show_default=default is not None,
        metavar="SECONDS",
        help=what,
    )


# Options of torch's launcher that pass through to it; with any of them it starts the script.
_TORCHRUN = (
    ("--nproc-per-node", "N"),
    ("--nnodes", "N"),
    ("--node-rank", "RANK"),
    ("--standalone", None),
    ("--rdzv-backend", "NAME"),
    ("--rdzv-endpoint", "HOST:PORT"),
    ("--rdzv-id", "ID"),
    ("--rdzv-conf", "CONF"),
    ("--master-addr", "HOST"),
    ("--master-port", "PORT"),
    ("--local-addr", "HOST"),
    ("--monitor-interval", "SECONDS"),
    ("--log-dir", "DIR"),
    ("--redirects", "STD"),
    ("--tee", "STD"),
    ("--local-ranks-filter", "RANKS"),
    ("--role", "NAME"),
    ("--numa-binding", "MODE"),
)


def _torchrun_options(command: F) -> F:
    """All are accepted; help has one row for them, since torchrun explains its own."""
    others = ", ".join(name for name, _ in _TORCHRUN[1:])
    text = (
        "Start SCRIPT as N ranks on this machine, by torchrun. Its other options pass through to "
        f"it as well, and `torchrun --help` explains them: {others}."
    )
    for i, (name, metavar) in reversed(list(enumerate(_TORCHRUN))):
        command = click.option(
            name, metavar=metavar, is_flag=metavar is None, hidden=i > 0, help=text
        )(command)
    return command


def _torchrun_words(options: dict[str, Any]) -> tuple[str, ...]:
    """Take the launcher's options out of `options`, as it reads them."""
    words: list[str] = []
    for name, metavar in _TORCHRUN:
        value = options.pop(name.removeprefix("--").replace("-", "_"))
        if value:
            words += [name] if metavar is None else [name, value]
    return tuple(words)


def _engine_options(command: F) -> F:
    command = click.option(
        "--ray-address",
        metavar="HOST:PORT",
        help="The Ray cluster; by default RAY_ADDRESS, one that runs here, or a new local one.",
    )(command)
    return click.option(
        "--engine",
        type=click.Choice(["local", "ray"]),
        default="local",
        show_default=True,
        help="ray: on the machines of a Ray cluster (the extra `ray`).",
    )(command)


_ONCE = click.option(
    "--once", is_flag=True, help="Don't run SCRIPT again where it ends before all is measured."
)

_TRIAL_LIMIT = click.option(
    "--trial-limit",
    "trial_limit_s",
    type=Seconds(),
    metavar="SECONDS",
    help="A trial that takes longer at a time hangs.  [default: 4 times what was planned, and a "
    "batch of it 120 s]",
)


_FAIL_ON = click.option(
    "--fail-on",
    metavar="RULE",
    multiple=True,
    help="Exit 3 where this holds, for example 'input>20%'. May be repeated.",
)


@click.group(context_settings=CONTEXT)
@click.version_option(__version__, prog_name="loaderdoctor")
def cli() -> None:
    """Say where each millisecond of a PyTorch training step goes, and what measurably helps."""


@cli.command(context_settings=SCRIPT_CONTEXT)
@click.option("-m", "as_module", is_flag=True, help="SCRIPT is a module, as in python -m.")
@_budget(45, "Seconds after the first step, the report included; start-up comes on top.")
@click.option("--no-ablation", is_flag=True, help="Don't substitute batches: the trace alone.")
@click.option("--no-verify", is_flag=True, help="Don't try the recommended settings.")
@_TRIAL_LIMIT
@click.option(
    "--run-to-end",
    is_flag=True,
    help="Plain and profiled windows only; the script then runs to its end, results unchanged.",
)
@_ONCE
@click.option(
    "--memory-history",
    is_flag=True,
    help="Save torch's GPU memory snapshot too, and measure what recording it costs.",
)
@_FAIL_ON
@_profile_options
@_output_options
@_torchrun_options
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def diagnose(script: str, args: tuple[str, ...], **options: Any) -> int:
    """Run SCRIPT unmodified, say where its step goes and which settings help it.

    With torchrun's options it runs as several ranks; `torchrun … -m loaderdoctor diagnose SCRIPT`
    does the same.
    """
    from loaderdoctor.commands.diagnose.command import DiagnoseOptions, diagnose

    torchrun, profiler = _torchrun_words(options), _profiler(options)
    return diagnose(
        DiagnoseOptions(script=script, args=args, torchrun=torchrun, profiler=profiler, **options)
    )


@cli.command(cls=GridCommand, context_settings=SCRIPT_CONTEXT)
@click.option("--recipe", metavar="NAME", help="A reference loop (see `loaderdoctor recipes`).")
@click.option("-m", "as_module", is_flag=True, help="SCRIPT is a module, as in python -m.")
@click.option(
    "--grid",
    multiple=True,
    metavar="AXIS=VALUES …",
    help="Values to try, as num_workers=0,2,4 or num_workers=0:50:5; by default what suits here.",
)
@click.option("--preset", metavar="NAME", help="A published experiment, with its claims checked.")
@click.option("--loader-only", is_flag=True, help="The loader alone over 0 to 50 workers.")
@click.option(
    "--search",
    type=click.Choice(["grid", "auto"]),
    default="grid",
    show_default=True,
    help="auto: compare the settings and drop clear losers early.",
)
@click.option("--isolate", is_flag=True, help="Each measurement in its own process.")
@click.option(
    "--resume",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="RUN",
    help="Go on with an interrupted sweep, from its run folder.",
)
@click.option("--rounds", type=click.IntRange(min=1), help="Measurements of each trial.")
@click.option(
    "--nproc-per-node",
    "n_ranks",
    type=click.IntRange(min=2),
    metavar="N",
    help="Ranks of trials with ddp=ddp.  [default: one for each GPU]",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the shuffled rounds.")
@_budget(None, "Seconds of measuring; trials are sized to fit.  [default: 120; presets their own]")
@_TRIAL_LIMIT
@click.option(
    "--rerun", is_flag=True, help="Start SCRIPT again, and go on, where a trial took it down."
)
@_ONCE
@click.option("--no-ablation", is_flag=True, help="Don't measure the two bounds.")
@_engine_options
@_profile_options
@_output_options
@click.argument("target", nargs=-1, type=click.UNPROCESSED, metavar="[SCRIPT [ARGS]…]")
def sweep(target: tuple[str, ...], **options: Any) -> int:
    """Try every combination of settings in a running loop and rank them by plain step time."""
    from loaderdoctor.commands.sweep.command import sweep
    from loaderdoctor.commands.sweep.plan import SweepOptions

    return sweep(SweepOptions(target=target, profiler=_profiler(options), **options))


@cli.command(context_settings=CONTEXT)
@click.option(
    "--tensorboard",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write the trace so that TensorBoard's PyTorch plugin shows right figures.",
)
@click.option(
    "--max-memory",
    metavar="SIZE",
    help="Refuse traces that need more, as 4GB or 512MiB.  [default: half of what is available, "
    "at least 1 GiB]",
)
@_FAIL_ON
@_engine_options
@_output_options
@click.argument("traces", nargs=-1, required=True, type=click.Path(path_type=Path))
def analyze(traces: tuple[Path, ...], **options: Any) -> int:
    """Attribute any torch.profiler trace (.json or .json.gz), or a folder of a job's ranks."""
    from loaderdoctor.commands.analyze.command import AnalyzeOptions, analyze

    return analyze(AnalyzeOptions(traces=traces, **options))


@cli.command(context_settings=CONTEXT)
@click.option("--fail-on-regression", is_flag=True, help="Exit 3 where RUN_B is slower.")
@click.argument("before", metavar="RUN_A", type=click.Path(path_type=Path))
@click.argument("after", metavar="RUN_B", type=click.Path(path_type=Path))
def compare(before: Path, after: Path, fail_on_regression: bool) -> int:
    """Say whether RUN_B is faster, slower, or no different beyond the noise."""
    from loaderdoctor.commands.compare import CompareOptions, compare

    return compare(
        CompareOptions(before=before, after=after, fail_on_regression=fail_on_regression)
    )


@cli.command(context_settings=CONTEXT)
@click.option("--port", type=int, default=6006, show_default=True, help="0 takes a free one.")
@click.option("--perfetto", is_flag=True, help="Serve the full trace in Perfetto's page instead.")
@click.option("--browser", "open_browser", is_flag=True, help="Open the address in a browser.")
@click.argument("run", type=click.Path(path_type=Path))
def view(run: Path, port: int, perfetto: bool, open_browser: bool) -> int:
    """Open a run folder in TensorBoard."""
    from loaderdoctor.commands.view import view

    return view(run, port=port, perfetto=perfetto, open_browser=open_browser)


@cli.command(context_settings=CONTEXT)
def recipes() -> int:
    """List the reference training loops."""
    from loaderdoctor.commands.recipes import recipes

    return recipes()


@cli.command(context_settings=CONTEXT)
def env() -> int:
    """Print what this machine offers: usable CPUs, memory, /dev/shm, GPU, torch."""
    from loaderdoctor.commands.env import env

    return env()


def main(argv: list[str] | None = None) -> None:
    """Console entry: run a command and exit with its code."""
    try:
        code = cli.main(args=argv, prog_name="loaderdoctor", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(EXIT_USAGE)
    except (click.Abort, KeyboardInterrupt) as error:
        from loaderdoctor.instrument.system.processes import exit_code_of

        click.echo("loaderdoctor: interrupted", err=True)
        sys.exit(exit_code_of(error.__cause__ or error))  # click wraps it
    except LoaderdoctorError as error:
        from loaderdoctor.format import plain

        text = "\n".join(plain(line) for line in str(error).splitlines())
        click.echo(f"loaderdoctor: {text}", err=True)
        sys.exit(error.exit_code)
    sys.exit(code if isinstance(code, int) else 0)
