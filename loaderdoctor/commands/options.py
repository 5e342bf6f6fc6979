"""Options that several commands have, and how they are read."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loaderdoctor.commands.help import HelpfulCommand

if TYPE_CHECKING:
    from loaderdoctor.instrument.wire.protocol import ProfilerSchedule

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


class TuneCommand(HelpfulCommand):
    """A command with `--tune`, which says `exact` only after an equals sign: SCRIPT comes next."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """A bare `--tune` among the options before SCRIPT reads `--tune=on`."""
        with_value = {
            name
            for param in self.params
            if isinstance(param, click.Option) and not param.is_flag and "--tune" not in param.opts
            for name in param.opts
        }
        args, at = list(args), 0
        while at < len(args) and args[at].startswith("-") and args[at] != "--":
            if args[at] == "--tune":
                args[at] = "--tune=on"
            at += 2 if args[at] in with_value else 1
        return super().parse_args(ctx, args)


class GridCommand(HelpfulCommand):
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


def output_options(command: F) -> F:
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


def profile_options(command: F) -> F:
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


def schedule_of(options: dict[str, Any]) -> ProfilerSchedule:
    """Take the schedule's options out of `options`."""
    from loaderdoctor.instrument.wire.protocol import ProfilerSchedule

    return ProfilerSchedule(
        **{name: options.pop(name) for name in ProfilerSchedule.__struct_fields__}
    )


def budget(default: int | None, what: str) -> Callable[[F], F]:
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
TORCHRUN = (
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


def torchrun_options(command: F) -> F:
    """All are accepted; help has one row for them, since torchrun explains its own."""
    others = ", ".join(name for name, _ in TORCHRUN[1:])
    text = (
        "Start SCRIPT as N ranks on this machine, by torchrun. Its other options pass through to "
        f"it as well, and `torchrun --help` explains them: {others}."
    )
    for i, (name, metavar) in reversed(list(enumerate(TORCHRUN))):
        command = click.option(
            name, metavar=metavar, is_flag=metavar is None, hidden=i > 0, help=text
        )(command)
    return command


def torchrun_words(options: dict[str, Any]) -> tuple[str, ...]:
    """Take the launcher's options out of `options`, as it reads them."""
    words: list[str] = []
    for name, metavar in TORCHRUN:
        value = options.pop(name.removeprefix("--").replace("-", "_"))
        if value:
            words += [name] if metavar is None else [name, value]
    return tuple(words)


def engine_options(command: F) -> F:
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


ONCE = click.option(
    "--once", is_flag=True, help="Don't run SCRIPT again where it ends before all is measured."
)

TRIAL_LIMIT = click.option(
    "--trial-limit",
    "trial_limit_s",
    type=Seconds(),
    metavar="SECONDS",
    help="A trial that takes longer at a time counts as hung.  [default: 4 times what was "
    "planned, and a batch of it 120 s]",
)


FAIL_ON = click.option(
    "--fail-on",
    metavar="RULE",
    multiple=True,
    help="Exit 3 where this holds, for example 'input>20%'. May be repeated.",
)
