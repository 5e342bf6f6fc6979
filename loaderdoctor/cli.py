"""The command line: parse, dispatch, turn errors into exit codes. Nothing is decided here.

Options go before the script; parsing stops at SCRIPT, and everything after it is the script's.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Literal

import click

from loaderdoctor import __version__
from loaderdoctor.commands.option_types import Count, Seconds
from loaderdoctor.commands.options import (
    FAIL_ON,
    ONCE,
    TRIAL_LIMIT,
    AnyPath,
    Commands,
    GridCommand,
    TuneCommand,
    budget,
    engine_options,
    output_options,
    profile_options,
    schedule_of,
    torchrun_options,
    torchrun_words,
)
from loaderdoctor.errors import EXIT_USAGE, LoaderdoctorError, whole_output

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
SCRIPT_CONTEXT = {**CONTEXT, "allow_interspersed_args": False}


@click.group(cls=Commands, context_settings=CONTEXT)
@click.version_option(__version__, prog_name="loaderdoctor")
def cli() -> None:
    """Say where each millisecond of a PyTorch training step goes, and what measurably helps."""


@cli.command(context_settings=SCRIPT_CONTEXT)
@click.option("-m", "as_module", is_flag=True, help="SCRIPT is a module, as in python -m.")
@budget(
    45,
    "Seconds after the first step at most, the report included; start-up comes on top. Up to "
    "twice as many where the first advice would otherwise not be measured, or the loader's cost "
    "would stay open.",
)
@click.option("--no-ablation", is_flag=True, help="Don't substitute batches: the trace alone.")
@click.option("--no-verify", is_flag=True, help="Don't try the recommended settings.")
@TRIAL_LIMIT
@click.option(
    "--run-to-end",
    is_flag=True,
    help="The older name of `loaderdoctor run --profile`.",
)
@ONCE
@click.option(
    "--memory-history",
    is_flag=True,
    help="Save torch's GPU memory snapshot too, and measure what recording it costs.",
)
@FAIL_ON
@profile_options
@output_options
@torchrun_options
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def diagnose(script: str, args: tuple[str, ...], run_to_end: bool, **options: Any) -> int:
    """Run SCRIPT unmodified, say where its step goes and which settings help it.

    With torchrun's options it runs as several ranks; `torchrun … -m loaderdoctor diagnose SCRIPT`
    does the same.
    """
    if run_to_end:
        return _run_to_end(script, args, options)
    from loaderdoctor.commands.diagnose import DiagnoseOptions, diagnose

    torchrun, profiler = torchrun_words(options), schedule_of(options)
    return diagnose(
        DiagnoseOptions(script=script, args=args, torchrun=torchrun, profiler=profiler, **options)
    )


def _run_to_end(script: str, args: tuple[str, ...], options: dict[str, Any]) -> int:
    """`diagnose --run-to-end`, for the release in which both are there."""
    from loaderdoctor.commands.run.command import RunOptions, run

    click.echo(
        "loaderdoctor: --run-to-end is now the command `loaderdoctor run --profile`; the option "
        "goes with the next release.",
        err=True,
    )
    kept = ("as_module", "fail_on", "json_target", "verbose", "output")
    return run(
        RunOptions(
            script=script,
            args=args,
            profile=True,
            torchrun=torchrun_words(options),
            **{name: options[name] for name in kept},
        )
    )


@cli.command(cls=TuneCommand, context_settings=SCRIPT_CONTEXT)
@click.option("-m", "as_module", is_flag=True, help="SCRIPT is a module, as in python -m.")
@click.option(
    "--tune",
    type=click.Choice(["on", "exact"]),
    metavar="[=exact]",
    help="Set the training loader to what is measured best while it trains; samples and their "
    "order stay. With =exact no random draw of a worker changes either.",
)
@click.option(
    "--profile",
    is_flag=True,
    help="Trace some steps with torch's profiler, once the loop is warm: more findings.",
)
@click.option(
    "--metrics-file",
    type=AnyPath(dir_okay=False),
    metavar="FILE",
    help="Keep the run's figures in FILE as OpenMetrics text, for Prometheus.",
)
@FAIL_ON
@output_options
@torchrun_options
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def run(
    script: str, args: tuple[str, ...], tune: Literal["on", "exact"] | None, **options: Any
) -> int:
    """Run SCRIPT to its end, results unchanged, and say what begins to cost meanwhile.

    The report at the end is of the whole run. With torchrun's options it runs as several ranks;
    `torchrun … -m loaderdoctor run SCRIPT` does the same.
    """
    from loaderdoctor.commands.run.command import RunOptions, run

    torchrun = torchrun_words(options)
    return run(RunOptions(script=script, args=args, tune=tune or "", torchrun=torchrun, **options))


@cli.command(cls=GridCommand, context_settings=SCRIPT_CONTEXT)
@click.option("--recipe", metavar="NAME", help="A reference loop (see `loaderdoctor recipes`).")
@click.option("-m", "as_module", is_flag=True, help="SCRIPT is a module, as in python -m.")
@click.option(
    "--grid",
    multiple=True,
    metavar="AXIS=VALUES …",
    help="Values to try, as num_workers=0,2,4 or num_workers=0:50:5 (every axis: docs/axes.md); "
    "by default what suits here.",
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
    type=AnyPath(file_okay=False),
    metavar="RUN",
    help="Go on with an interrupted sweep, from its run folder.",
)
@click.option("--rounds", type=Count(min=1), help="Measurements of each trial.")
@click.option(
    "--nproc-per-node",
    "n_ranks",
    type=Count(min=2),
    metavar="N",
    help="Ranks of trials with ddp=ddp.  [default: one for each GPU]",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the shuffled rounds.")
@budget(
    None,
    "Seconds of measuring; trials are sized to fit, and up to as many again where noise leaves the "
    "answer open.  [default: 120; presets their own]",
)
@TRIAL_LIMIT
@click.option(
    "--rerun", is_flag=True, help="Start SCRIPT again, and go on, where a trial took it down."
)
@ONCE
@click.option(
    "--no-ablation",
    is_flag=True,
    help="Don't measure what an instant loader and free copies would bring.",
)
@engine_options
@profile_options
@output_options
@click.argument("target", nargs=-1, type=click.UNPROCESSED, metavar="[SCRIPT [ARGS]…]")
def sweep(target: tuple[str, ...], **options: Any) -> int:
    """Try every combination of settings in a running loop and rank them by plain step time."""
    from loaderdoctor.commands.sweep import sweep
    from loaderdoctor.commands.sweep.plan import SweepOptions

    return sweep(SweepOptions(target=target, profiler=schedule_of(options), **options))


@cli.command(context_settings=CONTEXT)
@click.option(
    "--tensorboard",
    type=AnyPath(file_okay=False),
    metavar="DIR",
    help="Write the trace so that TensorBoard's PyTorch plugin shows right figures.",
)
@click.option(
    "--max-memory",
    metavar="SIZE",
    help="Refuse traces that need more, as 4GB or 512MiB.  [default: half of what is available, "
    "at least 1 GiB]",
)
@FAIL_ON
@engine_options
@output_options
@click.argument("traces", nargs=-1, required=True, type=AnyPath())
def analyze(traces: tuple[Path, ...], **options: Any) -> int:
    """Say where the step goes in any torch.profiler trace (.json, .json.gz).

    A folder is taken as one job, with a trace of each rank. Nothing is written unless asked for.
    """
    from loaderdoctor.commands.analyze import AnalyzeOptions, analyze

    return analyze(AnalyzeOptions(traces=traces, **options))


@cli.command(context_settings=CONTEXT)
@click.option("--fail-on-regression", is_flag=True, help="Exit 3 where RUN_B is slower.")
@click.argument("before", metavar="RUN_A", type=AnyPath())
@click.argument("after", metavar="RUN_B", type=AnyPath())
def compare(before: Path, after: Path, fail_on_regression: bool) -> int:
    """Say whether RUN_B is faster, slower, or no different beyond the noise."""
    from loaderdoctor.commands.view import compare

    return compare(before, after, fail_on_regression=fail_on_regression)


@cli.command(context_settings=SCRIPT_CONTEXT)
@click.option(
    "--changed",
    metavar="FILE",
    type=AnyPath(dir_okay=False),
    help="The changed script, in the folder of the other. It runs under the other's name.",
)
@click.option(
    "--turns",
    "n_turns",
    type=Count(2, 20),
    default=3,
    show_default=True,
    help="Runs of each, one after the other, at least.",
)
@click.option(
    "--max-turns",
    type=Count(2, 40),
    default=12,
    show_default=True,
    help="Runs of each while it is open whether the change gains; where --turns is larger, that.",
)
@click.option(
    "--seconds", type=Seconds(), default=12, show_default=True, help="Of timing, in each run."
)
@click.option(
    "--seed",
    type=Count(0, 2**32 - 1),  # what numpy takes
    metavar="INTEGER",
    default=0,
    show_default=True,
    help="What torch begins with.",
)
@click.option(
    "--share",
    multiple=True,
    metavar="DIR",
    type=AnyPath(file_okay=False),
    help="A folder to read where it is (data), instead of in a copy. Repeatable.",
)
@click.option(
    "--markdown",
    metavar="FILE",
    type=AnyPath(dir_okay=False),
    help="Write a page for a pull request.",
)
@click.option(
    "--json",
    "json_target",
    metavar="FILE",
    help="Write the proof for programs; '-' for stdout.",
)
@click.argument("target", metavar="RUN|SCRIPT", type=AnyPath())
@click.argument("words", metavar="[N|ARGS]…", nargs=-1, type=click.UNPROCESSED)
def prove(n_turns: int, max_turns: int, seconds: float, seed: int, **options: Any) -> int:
    """Try a run's advice, or a changed SCRIPT, in turns with the script as it is.

    RUN [N…]: the changes of these numbers in its report (without one, the first) are written into a
    copy. --changed FILE SCRIPT [ARGS]: your own change.

    Both run in copies of their folder, in fresh processes, on the same seed. What the model is
    given and the losses of the first steps are compared, the later steps are timed. Exit code 3:
    slower, or it trains something else.
    """
    from loaderdoctor.commands.advice import ProveOptions, prove
    from loaderdoctor.proving.turns import Turns

    how = Turns(n_turns=n_turns, max_turns=max_turns, seconds=seconds, seed=seed)
    return prove(ProveOptions(how=how, **options))


@cli.command(context_settings=CONTEXT)
@FAIL_ON
@click.option("--json", "json_target", metavar="FILE", help="Write report.json to FILE too.")
@click.option("-v", "--verbose", is_flag=True, help="Print the whole report.")
@click.argument("run", type=AnyPath())
def report(run: Path, **options: Any) -> int:
    """Show the report of a run folder; the run may go on, or have been killed."""
    from loaderdoctor.commands.report import report

    return report(run, **options)


@cli.command(context_settings=CONTEXT)
@click.option("--write", is_flag=True, help="Write it; never into a file changed since the run.")
@click.option("--undo", is_flag=True, help="Take back what was written last.")
@click.option("--prove", "proves", is_flag=True, help="Then try it in a copy, as `prove` does.")
@click.argument("run", type=AnyPath())
@click.argument("numbers", metavar="[N]…", nargs=-1, type=Count(min=1))
def apply(run: Path, numbers: tuple[int, ...], write: bool, undo: bool, proves: bool) -> int:
    """Print a run's advice as a diff of your files; with --write, write it.

    N are the numbers of "What to change"; without one, the first. Where an option of the script
    does it, the command line is printed instead.
    """
    from loaderdoctor.commands.advice import apply

    code = apply(run, numbers, write=write, undo=undo)
    if code or undo or not proves:
        return code
    from loaderdoctor.commands.advice import ProveOptions, prove

    return prove(ProveOptions(target=run, words=tuple(str(n) for n in numbers)))


@cli.command(context_settings=CONTEXT)
@click.option("--port", type=int, default=6006, show_default=True, help="0 takes a free one.")
@click.option("--perfetto", is_flag=True, help="Serve the full trace in Perfetto's page instead.")
@click.option("--browser", "open_browser", is_flag=True, help="Open the address in a browser.")
@click.argument("run", type=AnyPath())
def view(run: Path, port: int, perfetto: bool, open_browser: bool) -> int:
    """Open a run folder in TensorBoard."""
    from loaderdoctor.commands.view import view

    return view(run, port=port, perfetto=perfetto, open_browser=open_browser)


@cli.command(context_settings=CONTEXT)
def recipes() -> int:
    """List the reference training loops."""
    from loaderdoctor.commands.inventory import recipes

    return recipes()


@cli.command(context_settings=CONTEXT)
def env() -> int:
    """Print what this machine offers: usable CPUs, memory, /dev/shm, GPU, torch."""
    from loaderdoctor.commands.inventory import env

    return env()


def main(argv: list[str] | None = None) -> None:
    """Console entry: run a command and exit with its code."""
    try:
        with whole_output():
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
