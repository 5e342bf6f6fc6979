"""The options of the command line: those that several commands have, and how `--help` shows all."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from loaderdoctor.commands.option_types import Count, Seconds
from loaderdoctor.errors import UsageError

if TYPE_CHECKING:
    from loaderdoctor.instrument.wire.protocol import ProfilerSchedule


# Title -> parameters; what no title names comes first, as the command's own.
_GROUPS: Mapping[str, tuple[str, ...]] = {
    "The report": ("verbose", "output", "json_target", "fail_on", "tensorboard", "metrics_file"),
    "How much is measured": (
        "budget_s", "no_ablation", "no_verify", "trial_limit_s", "run_to_end", "once", "rerun",
        "isolate", "rounds", "seed", "memory_history", "max_memory",
    ),
    "torch.profiler": (
        "profile", "wait", "warmup", "active", "repeat", "with_stack", "profile_memory",
    ),
    "Several processes or machines": ("nproc_per_node", "n_ranks", "engine", "ray_address"),
}  # fmt: skip
_COMMANDS: Mapping[str, tuple[str, ...]] = {
    "Measure": ("diagnose", "sweep", "analyze", "run"),
    "Act on it": ("apply", "prove"),
    "Look at runs": ("report", "view", "compare"),
    "What there is": ("recipes", "env"),
}
# (what for, command line) of each command.
EXAMPLES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "loaderdoctor": (
        ("what slows this training, and what helps?", "loaderdoctor diagnose train.py --lr 0.1"),
        ("and everything that was measured:", "loaderdoctor diagnose --verbose train.py"),
    ),
    "diagnose": (
        ("a script with its own options", "loaderdoctor diagnose train.py --lr 0.1"),
        ("a module, two minutes of measuring", "loaderdoctor diagnose --budget 120 -m pkg.train"),
        ("four ranks", "loaderdoctor diagnose --nproc-per-node 4 train.py"),
        ("in CI: exit 3 where loading costs too much",
         "loaderdoctor diagnose --fail-on 'input>20%' train.py"),
    ),
    "run": (
        ("the whole training, results unchanged", "loaderdoctor run train.py --lr 0.1"),
        ("and the loader's best settings found meanwhile", "loaderdoctor run --tune train.py"),
        ("and its figures for Prometheus", "loaderdoctor run --metrics-file out.prom train.py"),
    ),
    "sweep": (
        ("these settings, in your own script",
         "loaderdoctor sweep --grid num_workers=0,2,4 pin_memory=true,false train.py"),
        ("the best of many, losers dropped early", "loaderdoctor sweep --search auto train.py"),
        ("a published table on this machine",
         "loaderdoctor sweep --recipe cifar10-mobilenetv2 --preset ladder"),
    ),
    "analyze": (
        ("any trace of torch.profiler", "loaderdoctor analyze run.pt.trace.json.gz"),
        ("one folder with a trace of each rank", "loaderdoctor analyze traces/"),
    ),
    "apply": (
        ("the first advice as a diff of your files",
         "loaderdoctor apply loaderdoctor-runs/20260102-030405-train"),
        ("the second, written", "loaderdoctor apply --write loaderdoctor-runs/… 2"),
        ("and taken back", "loaderdoctor apply --undo loaderdoctor-runs/…"),
    ),
    "prove": (
        ("does what was promised come true?",
         "loaderdoctor prove loaderdoctor-runs/20260102-030405-train"),
        ("is my own change faster, and trains the same?",
         "loaderdoctor prove --changed fast.py train.py --lr 0.1"),
    ),
    "report": (("of a run that still goes on, or was killed",
                "loaderdoctor report loaderdoctor-runs/20260102-030405-train"),),
    "compare": (
        ("did it help, beyond the noise?", "loaderdoctor compare RUN_A RUN_B"),
        ("in CI: exit 3 where it is slower",
         "loaderdoctor compare --fail-on-regression RUN_A RUN_B"),
    ),
    "view": (("in TensorBoard", "loaderdoctor view loaderdoctor-runs/20260102-030405-train"),),
    "recipes": (("one of them, swept", "loaderdoctor sweep --recipe mnist"),),
    "env": (("what this machine offers", "loaderdoctor env"),),
}  # fmt: skip


class HelpfulCommand(click.Command):
    """A command whose options come in groups, with examples below."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a section for each group that has options."""
        rows: dict[str, list[tuple[str, str]]] = {"Options": [], **{title: [] for title in _GROUPS}}
        titles = {name: title for title, names in _GROUPS.items() for name in names}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record is not None:
                rows[titles.get(param.name or "", "Options")].append(record)
        for title, records in rows.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        _write_examples(self.name or "", formatter)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Options, and files where a script or a trace is to be named."""
        found = super().shell_complete(ctx, incomplete)
        if incomplete.startswith("-") or any(item.type == "file" for item in found):
            return found
        return [*found, CompletionItem(incomplete, type="file")]


class AnyPath(click.Path):
    """A path; one that the system won't even look at (too long, in a closed folder) is refused."""

    def __init__(self, **options: Any) -> None:
        super().__init__(path_type=Path, **options)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            os.stat(value)  # noqa: PTH116 - not a Path before it is converted
        except (FileNotFoundError, NotADirectoryError):  # what that means the command knows
            if not value:  # which pathlib takes for the current folder
                raise UsageError("A path is empty, as of a variable that is not set.") from None
        except OSError as error:
            raise UsageError(f"{value}: {error.strerror}. Check the path.") from None
        return super().convert(value, param, ctx)


class Commands(click.Group):
    """The commands, by what they are for."""

    command_class = HelpfulCommand

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a section for each purpose; a command without one comes with those that measure."""
        named = {name for names in _COMMANDS.values() for name in names}
        others = [name for name in self.list_commands(ctx) if name not in named]
        for i, (title, names) in enumerate(_COMMANDS.items()):
            shown = [*(name for name in names if name in self.commands), *(others if not i else ())]
            rows = [(name, self.commands[name].get_short_help_str(200)) for name in shown]
            with formatter.section(title):
                formatter.write_dl(rows)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write examples, and how the shell completes commands."""
        _write_examples("loaderdoctor", formatter)
        shell = os.path.basename(os.environ.get("SHELL", "bash")) or "bash"  # noqa: PTH119
        shell = shell if shell in ("bash", "zsh", "fish") else "bash"
        with formatter.section("Tab completion, as a line of the shell's start-up file"):
            formatter.write(" " * formatter.current_indent + completion_line(shell) + "\n")


def completion_line(shell: str) -> str:
    """The line for the shell's start-up file (bash, zsh or fish)."""
    if shell == "fish":
        return "_LOADERDOCTOR_COMPLETE=fish_source loaderdoctor | source"
    return f'eval "$(_LOADERDOCTOR_COMPLETE={shell}_source loaderdoctor)"'


def _write_examples(name: str, formatter: click.HelpFormatter) -> None:
    examples: Sequence[tuple[str, str]] = EXAMPLES.get(name, ())
    if not examples:
        return
    with formatter.section("Examples"):
        for what, line in examples:  # never wrapped: a line is to be copied
            indent = " " * formatter.current_indent
            formatter.write(f"{indent}{what}\n{indent}  {line}\n")


_GRID_TOKEN = re.compile(r"^[a-z][a-z0-9_]*=")

F = Callable[..., Any]


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
        type=AnyPath(file_okay=False),
        help="Run folder to write; by default loaderdoctor-runs/<time>-<name>/.",
    )(command)


def profile_options(command: F) -> F:
    """torch.profiler's schedule; what is not given suits the step time found."""
    for option in (
        click.option("--profile-memory", is_flag=True, help="Record allocations in the trace."),
        click.option("--with-stack", is_flag=True, help="Record Python stacks in the trace."),
        click.option(
            "--repeat",
            type=Count(min=1),
            default=1,
            show_default=True,
            help="Profiler schedule: how often these three come, each time with a trace.",
        ),
        click.option("--active", type=Count(min=1), help="Profiler schedule: steps it records."),
        click.option(
            "--warmup",
            type=Count(min=0),
            help="Profiler schedule: steps in which it runs and keeps nothing.",
        ),
        click.option(
            "--wait", type=Count(min=0), help="Profiler schedule: steps before it starts."
        ),
    ):  # the last one is the first in the help
        command = option(command)
    return command


def schedule_of(options: dict[str, Any]) -> ProfilerSchedule:
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
    help="A measurement of a trial that takes longer counts as hung.  [default: four times as long "
    "as planned; waiting for one batch, 30 s in a diagnosis, else 120 s]",
)


FAIL_ON = click.option(
    "--fail-on",
    metavar="RULE",
    multiple=True,
    help="Exit 3 where this holds, for example 'input>20%'. May be repeated.",
)
