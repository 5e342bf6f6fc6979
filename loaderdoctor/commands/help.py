"""How `--help` reads: options in groups, commands by what they are for, an example for each."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import click
from click.shell_completion import CompletionItem

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
        """Write the examples."""
        _write_examples(self.name or "", formatter)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Options, and files where a script or a trace is to be named."""
        found = super().shell_complete(ctx, incomplete)
        if incomplete.startswith("-") or any(item.type == "file" for item in found):
            return found
        return [*found, CompletionItem(incomplete, type="file")]


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
