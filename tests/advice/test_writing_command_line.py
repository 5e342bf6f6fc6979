"""Where a setting comes from the script's command line, the advice is that option."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loaderdoctor.advice.writing import rerun, written
from loaderdoctor.facts import Facts
from loaderdoctor.settings import Settings
from tests.advice.printed import facts_of, printed
from tests.advice.test_printed_code import rows_of

NINE = Settings(num_workers=9)
HEAD = "import argparse, os, sys\nimport torch\nfrom torch.utils.data import DataLoader\n"
LOADER = "loader = DataLoader(data, batch_size=8, num_workers={})  # train loader\n"


def started(text: str, *args: str, loader: Any = None, **changes: Any) -> Facts:
    facts = facts_of(Path("train.py"), text=HEAD + text, loader=loader or {})
    assert facts.script is not None
    script = msgspec.structs.replace(facts.script, args=args, **changes)
    return replace(facts, script=script)


ARGPARSE = """
parser = argparse.ArgumentParser()
parser.add_argument("-j", "--workers", type=int, default=4)
parser.add_argument("--data")
args = parser.parse_args()
data = [0.0] * 32
"""
FUNCTION = """
def get_args():
    p = argparse.ArgumentParser()
    p.add_argument("--num-workers", type=int, default=4)
    return p.parse_args()
def loaders(args, data):
    return DataLoader(data, batch_size=8, num_workers=args.num_workers)  # train loader
def main():
    args = get_args()
    loader = loaders(args, [0.0] * 32)
main()
"""
PASSED_ON = """
def make(data, batch, n):
    workers = int(n)
    return DataLoader(data, batch_size=batch, num_workers=workers)  # train loader
def main():
    p = argparse.ArgumentParser()
    p.add_argument("--n_workers", dest="n", type=int, default=4)
    opt = vars(p.parse_args())
    make([0.0] * 32, 8, opt["n"])
main()
"""
TRAINER = """
class Trainer:
    def __init__(self, args):
        self.args = args
        self.loader = DataLoader([0.0], batch_size=8, num_workers=self.args.workers)  # train loader
p = argparse.ArgumentParser()
p.add_argument("--workers", type=int)
args = p.parse_args()
Trainer(args)
"""
SUBCOMMANDS = """
common = argparse.ArgumentParser(add_help=False)
common.add_argument("-w", "--workers", type=int, default=4)
parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int)
sub = parser.add_subparsers(dest="command")
train = sub.add_parser("train", parents=[common])
args = parser.parse_args()
data = [0.0] * 32
"""
MAIN_OPTION = """
parser = argparse.ArgumentParser()
parser.add_argument("--workers", type=int, default=4)
sub = parser.add_subparsers(dest="command")
train = sub.add_parser("train")
train.add_argument("--lr", type=float)
args = parser.parse_args()
data = [0.0] * 32
"""
CLICK = """
import click
@click.command()
@click.option("--workers", "-j", default=4)
@click.option("--pin/--no-pin", default=False)
@click.argument("folder")
def main(workers, pin, folder):
    loader = DataLoader([0.0], batch_size=8, num_workers=workers, pin_memory=pin)  # train loader
main()
"""
TYPER = """
import typer
def main(folder: str, num_workers: int = 4, pin: bool = False):
    loader = DataLoader([0.0], batch_size=8, num_workers=num_workers)  # train loader
typer.run(main)
"""
TYPER_OPTION = """
import typer
from typing import Annotated
app = typer.Typer()
@app.command()
def main(workers: Annotated[int, typer.Option("--loader-workers", "-w")] = 4):
    loader = DataLoader([0.0], batch_size=8, num_workers=workers)  # train loader
app()
"""
HYDRA = """
import hydra
def build(cfg):
    return DataLoader([0.0], batch_size=8, num_workers=cfg.data.num_workers)  # train loader
@hydra.main(config_path="conf", config_name="config")
def main(cfg):
    loader = build(cfg)
main()
"""
HYDRA_UNPACKED = """
import hydra
@hydra.main(config_path="conf", config_name="config")
def main(cfg):
    loader = DataLoader([0.0], **cfg.loader)  # train loader
main()
"""
OMEGACONF = """
from omegaconf import OmegaConf
cfg = OmegaConf.merge(OmegaConf.load("base.yaml"), OmegaConf.from_cli())
data = [0.0] * 32
"""
HF_FIELDS = """
from dataclasses import dataclass
from transformers import HfArgumentParser
@dataclass
class DataArguments:
    preprocessing_num_workers: int = 4
    loader_workers: int = 4
parser = HfArgumentParser(DataArguments)
(data_args,) = parser.parse_args_into_dataclasses()
data = [0.0] * 32
"""
SIMPLE = """
from dataclasses import dataclass
import simple_parsing
@dataclass
class Config:
    num_workers: int = 4
parser = simple_parsing.ArgumentParser()
parser.add_arguments(Config, dest="config")
args = parser.parse_args()
data = [0.0] * 32
"""
WORDS = """
options = dict(word.split("=", 1) for word in sys.argv[1:])
data = [0.0] * 32
"""
ABSL = """
from absl import app, flags
FLAGS = flags.FLAGS
flags.DEFINE_integer("num_workers", 4, "workers")
data = [0.0] * 32
"""
PLAIN = "data = [0.0] * 32\n"

CASES = [
    ("args", ARGPARSE + LOADER.format("args.workers"), ["-j", "4"], "-j 9", "-j 9"),
    ("glued", ARGPARSE + LOADER.format("args.workers"), ["-j4", "--data", "a b"],
     "-j 9", "-j 9 --data 'a b'"),
    ("equals", ARGPARSE + LOADER.format("args.workers"), ["--workers=4", "--data=x y"],
     "-j 9", "--workers=9 '--data=x y'"),
    ("long", ARGPARSE + LOADER.format("args.workers"), ["--workers", "4", "--data", "x"],
     "-j 9", "--workers 9 --data x"),
    ("added", ARGPARSE + LOADER.format("args.workers"), ["--data", "my $dir"],
     "-j 9", "--data 'my $dir' -j 9"),
    ("before --", ARGPARSE + LOADER.format("args.workers"), ["--", "x"], "-j 9", "-j 9 -- x"),
    ("function", FUNCTION, [], "--num-workers 9", "--num-workers 9"),
    ("passed on", PASSED_ON, ["--n_workers", "2"], "--n_workers 9", "--n_workers 9"),
    ("attribute", TRAINER, [], "--workers 9", "--workers 9"),
    ("parents", SUBCOMMANDS + LOADER.format("args.workers"), ["--seed", "1", "train"],
     "-w 9", "--seed 1 train -w 9"),
    ("main option", MAIN_OPTION + LOADER.format("args.workers"), ["train", "--lr", "0.1"],
     "--workers 9", "--workers 9 train --lr 0.1"),
    ("click", CLICK, ["/data"], "-j 9", "/data -j 9"),
    ("typer", TYPER, ["/data"], "--num-workers 9", "/data --num-workers 9"),
    ("typer option", TYPER_OPTION, [], "-w 9", "-w 9"),
    ("hydra", HYDRA, ["data.num_workers=2", "model=big"],
     "data.num_workers=9", "data.num_workers=9 model=big"),
    ("hydra unpacked", HYDRA_UNPACKED, ["model=big"],
     "++loader.num_workers=9", "model=big ++loader.num_workers=9"),
    ("omegaconf", OMEGACONF + LOADER.format("cfg.loader.workers"), [],
     "loader.workers=9", "loader.workers=9"),
    ("hf fields", HF_FIELDS + LOADER.format("data_args.loader_workers"), [],
     "--loader_workers 9", "--loader_workers 9"),
    ("simple-parsing", SIMPLE + LOADER.format("args.config.num_workers"), [],
     "--num_workers 9", "--num_workers 9"),
    ("words", WORDS + LOADER.format('int(options.get("workers", 4))'), ["workers=2", "lr=1"],
     "workers=9", "workers=9 lr=1"),
    ("absl", ABSL + LOADER.format("FLAGS.num_workers"), [], "--num_workers 9", "--num_workers 9"),
    ("place", PLAIN + LOADER.format("int(sys.argv[2])"), ["data dir", "4", "x"],
     "9 as word 2", "'data dir' 9 x"),
    ("place or default", PLAIN + LOADER.format("int(sys.argv[1]) if len(sys.argv) > 1 else 4"),
     [], "9 as word 1", "9"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text", "args", "option", "line"), CASES, ids=lambda x: str(x)[:12]
)
def test_the_option_is_advised_with_the_other_words_kept(
    name: str, text: str, args: list[str], option: str, line: str
) -> None:
    facts = started(text, *args)
    again = rerun(facts, NINE)
    assert again is not None, name
    assert again.options == (option,)
    assert again.command == f"python train.py {line}"
    assert again.arguments == {"num_workers"}
    said = written(facts, NINE)
    assert said.code == "" and said.command == again.command
    assert said.idea == f"Run it with `{option}`."


@pytest.mark.parametrize(
    "text",
    [
        PLAIN + LOADER.format("4"),
        PLAIN + LOADER.format("os.cpu_count()"),
        ARGPARSE + LOADER.format("args.workers // 2"),
        ARGPARSE + LOADER.format("args.workers if torch.cuda.is_available() else 0"),
        ARGPARSE + LOADER.format("max(args.workers, 2)"),
        ARGPARSE + LOADER.format("args.unknown"),
        ARGPARSE + "workers = args.workers\nworkers = 2\n" + LOADER.format("workers"),
        ARGPARSE + "for workers in (1, 2):\n    pass\n" + LOADER.format("workers"),
        ARGPARSE + "args.workers = min(args.workers, 4)\n" + LOADER.format("args.workers"),
        ARGPARSE + "args.workers //= 2\n" + LOADER.format("args.workers"),
        ARGPARSE.replace("parse_args()", "parse_args([])") + LOADER.format("args.workers"),
        ARGPARSE.replace("parse_args()", 'parse_args("-j 2".split())')
        + LOADER.format("args.workers"),
        ARGPARSE + 'vars(args)["workers"] = 2\n' + LOADER.format("args.workers"),
        TRAINER + "def half(given):\n    given.workers //= 2\n",
        HYDRA + "def half(cfg):\n    cfg.data.num_workers //= 2\n",
        "parser = None\nargs = parser.load()\ndata = [0.0]\n" + LOADER.format("args.workers"),
    ],
)
def test_what_is_computed_or_not_declared_is_no_option(text: str) -> None:
    facts = started(text)
    assert rerun(facts, NINE) is None
    assert written(facts, NINE).command is None


def test_what_is_assigned_to_another_path_leaves_the_option() -> None:
    text = HYDRA + "def other(cfg):\n    cfg.test.num_workers = 0\n"
    assert _options(started(text), num_workers=9) == ("data.num_workers=9",)
    text = TRAINER + "class Other:\n    def f(self):\n        self.workers = 2\n"
    assert _options(started(text), num_workers=9) == ("--workers 9",)


@pytest.mark.parametrize(
    ("test", "n_ranks", "is_option"),
    [
        ("args.distributed", 1, True),
        ("args.distributed", 2, False),
        ("torch.cuda.is_available() and args.distributed", 1, True),
        ("args.world_size > 1", 1, True),
        ("torch.cuda.is_available() or args.distributed", 1, False),
        ("not args.distributed", 1, False),
        ("args.data", 1, False),
    ],
)
def test_what_is_computed_for_several_ranks_leaves_the_option_of_one(
    test: str, n_ranks: int, is_option: bool
) -> None:
    text = ARGPARSE + f"if {test}:\n    if args.data:\n        args.workers //= 2\n"
    facts = started(text + LOADER.format("args.workers"), n_ranks=n_ranks)
    assert _options(facts, num_workers=9) == (("-j 9",) if is_option else None)


def test_what_is_computed_where_there_is_one_rank_is_no_option() -> None:
    text = ARGPARSE + "if args.distributed:\n    pass\nelse:\n    args.workers //= 2\n"
    assert _options(started(text + LOADER.format("args.workers")), num_workers=9) is None


def test_a_word_is_written_in_code_where_those_before_it_are_missing() -> None:
    text = PLAIN + LOADER.format("int(sys.argv[2]) if len(sys.argv) > 2 else 4")
    facts = started(text)
    assert rerun(facts, NINE) is None
    said = written(facts, NINE)
    assert said.command is None and "num_workers=9" in said.code
    again = rerun(started(text, "data"), NINE)
    assert again is not None and again.command == "python train.py data 9"


def test_the_environment_is_set_before_the_command() -> None:
    facts = started(PLAIN + LOADER.format('int(os.environ.get("WORKERS", "4"))'), "--x", "a b")
    again = rerun(facts, NINE)
    assert again is not None
    assert (again.options, again.command) == (("WORKERS=9",), "WORKERS=9 python train.py --x 'a b'")


def test_words_that_a_recipe_adds_are_not_typed_again_unless_they_change() -> None:
    facts = started(ARGPARSE + LOADER.format("args.workers"), "--epochs", "9999", "--x")
    assert facts.script is not None
    script = msgspec.structs.replace(facts.script, n_added_args=2)
    again = rerun(replace(facts, script=script), NINE)
    assert again is not None and again.command == "python train.py --x -j 9"
    script = msgspec.structs.replace(script, args=("-j", "2", "--x"))
    again = rerun(replace(facts, script=script), NINE)
    assert again is not None and again.command == "python train.py -j 9 --x"


def test_switches_are_given_or_negated() -> None:
    text = """
parser = argparse.ArgumentParser()
parser.add_argument("--pin", action="store_true")
parser.add_argument("--keep", action=argparse.BooleanOptionalAction, default=True)
args = parser.parse_args()
data = [0.0] * 32
loader = DataLoader(data, pin_memory=args.pin, persistent_workers=args.keep)  # train loader
"""
    assert _options(started(text), pin_memory=True) == ("--pin",)
    assert _options(started(text), pin_memory=False) is None
    assert _options(started(text), persistent_workers=False) == ("--no-keep",)
    again = rerun(started(text, "--keep", "x"), Settings(persistent_workers=False))
    assert again is not None and again.command == "python train.py --no-keep x"
    assert _options(started(CLICK, "x"), pin_memory=True) == ("--pin",)
    assert _options(started(CLICK, "x"), pin_memory=False) == ("--no-pin",)


def _options(facts: Facts, **settings: Any) -> tuple[str, ...] | None:
    again = rerun(facts, Settings(**settings))
    return again.options if again is not None else None


def test_what_has_no_option_is_written_next_to_it() -> None:
    facts = started(ARGPARSE + LOADER.format("args.workers"), "-j", "4")
    said = written(facts, Settings(num_workers=9, persistent_workers=True))
    assert said.command == "python train.py -j 9"
    assert "num_workers=args.workers" in said.code
    assert "persistent_workers=args.workers > 0" in said.code  # `-j 0` stays possible
    assert "num_workers=9" not in said.code


@pytest.mark.parametrize(("own", "counted"), [
    ("num_workers=int(args.workers)", "int(args.workers)"),
    ("num_workers=vars(args).get('workers', 0)", None),  # vars() is no call that is known
    ("num_workers=cfg.get('workers', 0)", "cfg.get('workers', 0)"),
    ("num_workers=min(8, os.cpu_count() or 1, args.workers)",
     "min(8, os.cpu_count() or 1, args.workers)"),
    ("num_workers=args.workers // 2", "(args.workers // 2)"),
    ("num_workers=counts.get()", None),  # of a queue
    ("num_workers=next(counts)", None),
    ("8, True, None, None, args.workers", "args.workers"),
    ("8, True, None, None, next(counts)", None),
])  # fmt: skip
def test_workers_are_kept_where_there_are_any(own: str, counted: str | None) -> None:
    text = f"{HEAD}loader = DataLoader(data, {own})  # train loader\n"
    facts = facts_of(Path("train.py"), text=text)
    found = written(facts, Settings(persistent_workers=True, prefetch_factor=4))
    if counted is None:
        assert "persistent_workers" not in found.code and "prefetch_factor" not in found.code
        assert "may give another number" in (found.idea or "")
    else:
        assert f"persistent_workers={counted} > 0" in found.code
        assert f"prefetch_factor=4 if {counted} else None" in found.code


def test_trainer_s_own_argument_is_an_option_where_a_parser_fills_it() -> None:
    text = "from transformers import HfArgumentParser, TrainingArguments\n"
    text += "parser = HfArgumentParser(TrainingArguments)\n"
    made = {"library": "transformers"}
    facts = started(text + LOADER.format(0), "--output_dir", "out", loader=made)
    again = rerun(facts, NINE)
    assert again is not None
    assert again.command == "python train.py --output_dir out --dataloader_num_workers 9"
    plain = (
        "from transformers import TrainingArguments\nargs = TrainingArguments(output_dir='out')\n"
    )
    facts = started(plain + LOADER.format(0), loader=made)
    assert rerun(facts, NINE) is None
    code = written(facts, NINE).code
    assert "+ args = TrainingArguments(output_dir='out', dataloader_num_workers=9)" in code


def test_a_module_and_several_ranks() -> None:
    text = ARGPARSE + LOADER.format("args.workers")
    again = rerun(started(text, given=None, module="pkg.train"), NINE)
    assert again is not None and again.command == "python -m pkg.train -j 9"
    again = rerun(started(text, n_ranks=2), NINE)
    assert again is not None and again.command is None  # how ranks were started is not known
    said = written(started(text, n_ranks=2), NINE)
    assert (said.command, said.idea) == (None, "Run it with `-j 9`.")


def test_two_loaders_of_different_options_have_no_common_one() -> None:
    facts = started(ARGPARSE + LOADER.format("args.workers"))
    other = msgspec.structs.replace(facts.loaders[0], id="other.py:3")
    assert rerun(replace(facts, loaders=(*facts.loaders, other)), NINE) is None


def test_the_command_is_printed_whole_and_means_what_was_advised() -> None:
    long = "a folder with spaces and a rather long name/" * 3
    facts = started(ARGPARSE + LOADER.format("args.workers"), "--data", long, "-j", "4")
    text = printed(rows_of(facts, NINE))
    (line,) = [x.strip() for x in text.splitlines() if x.strip().startswith("python ")]
    words = shlex.split(line)
    parser = argparse.ArgumentParser()
    parser.add_argument("-j", "--workers", type=int)
    parser.add_argument("--data")
    parsed = parser.parse_args(words[2:])
    assert (parsed.workers, parsed.data) == (9, long)


# As timm's train.py has it: a tuple of options, `**kwargs`, and one helper for both loaders.
TWO_CALLS = """
def parse():
    p = argparse.ArgumentParser()
    p.add_argument("-j", "--workers", type=int, default=4)
    args = p.parse_args()
    return args, "text of them"
def create(data, batch_size=8, num_workers=1, pin=False):
    loader_args = dict(num_workers=num_workers, persistent_workers=False)
    loader_args.update(batch_size=batch_size)
    loader_args["pin_memory"] = pin
    return DataLoader(data, **loader_args)  # train loader
def main():
    args, args_text = parse()
    more = dict(num_workers=args.workers)
    loader = create([0.0] * 32, **more)
    other = create([0.0] * 32, num_workers=min(2, args.workers))
main()
"""
UPDATED = "loader_args.update(batch_size=batch_size)"
HALVED = """\
    def halve():
        nonlocal num_workers
        num_workers //= 2
    halve()
    loader_args = dict("""


@pytest.mark.parametrize(
    ("old", "new", "options"),
    [
        ("", "", ("-j 9",)),
        ('loader_args["pin_memory"]', 'loader_args["num_workers"]', None),
        ("loader_args.update(batch_size=batch_size)", "change(loader_args)", None),
        ("loader_args.update(batch_size=batch_size)", "loader_args.update(data[0])", None),
        ("**more)", "**more, **dict(args.more))", ("-j 9",)),
        ("**more)", "num_workers=min(args.workers, 8))", None),
        ('return args, "text of them"', "return parts(args)", None),
        # What changes the dict on its way, by whatever means.
        (UPDATED, "change(opts=loader_args)", None),
        (UPDATED, 'del loader_args["num_workers"]', None),
        (UPDATED, "loader_args.clear()", None),
        (UPDATED, 'd = loader_args; d["num_workers"] = 0', None),
        (UPDATED, 'for d in (loader_args,): d["num_workers"] = 0', None),
        (UPDATED, "[loader_args][0].update(num_workers=0)", None),
        (UPDATED, "loader_args |= dict(num_workers=0)", None),
        (UPDATED, "opts.loader_args = loader_args", None),
        (UPDATED, "vary = loader_args.update; vary(num_workers=0)", None),
        (UPDATED, "del loader_args", None),
        (UPDATED, "(lambda: loader_args)()['num_workers'] = 0", None),
        ("    loader_args = dict(", "    kept = loader_args = dict(", None),
        # What leaves the key as it is.
        (UPDATED, 'loader_args["pin_memory"] |= loader_args["persistent_workers"]', ("-j 9",)),
        (UPDATED, 'if "timeout" in loader_args: loader_args.pop("timeout", None)', ("-j 9",)),
        (UPDATED, 'text = f"{loader_args} {loader_args.get(0)}"', ("-j 9",)),
        # A parameter that is given another value before it is read.
        (UPDATED, "num_workers = min(num_workers, 2)", None),
        (UPDATED, "num_workers //= 2", None),
        (UPDATED, "for num_workers, _ in [(0, 0)]: pass", None),
        (UPDATED, "with held() as num_workers: pass", None),
        ("    loader_args = dict(", HALVED, None),
        (UPDATED, "few = [num_workers for num_workers in ()]", ("-j 9",)),  # another name
    ],
)
def test_of_a_helper_that_is_called_twice_the_call_under_way_counts(
    old: str, new: str, options: tuple[str, ...] | None
) -> None:
    text = TWO_CALLS.replace(old, new) if old else TWO_CALLS
    facts = started(text, "-j", "4")
    assert facts.script is not None
    (path,) = facts.script.sources
    at = [i for i, line in enumerate((HEAD + text).split("\n"), 1) if "= create(" in line]
    reached = replace_callers(facts, ((path, at[0]),))
    found = rerun(reached, NINE)
    assert (found.options if found is not None else None) == options
    assert rerun(facts, NINE) is None  # which of the two calls is not known
    assert rerun(replace_callers(facts, ((path, at[1]),)), NINE) is None


def replace_callers(facts: Facts, callers: tuple[tuple[str, int], ...]) -> Facts:
    loaders = tuple(msgspec.structs.replace(x, callers=callers) for x in facts.loaders)
    return replace(facts, loaders=loaders)


@pytest.mark.parametrize(
    ("declared", "value", "option"),
    [
        ('"--workers", type=int, choices=[0, 2, 4]', 9, None),
        ('"--workers", type=int, choices=[0, 2, 9]', 9, "--workers 9"),
        ('"--workers", type=int, choices=range(0, 9)', 9, None),
        ('"--workers", type=int, choices=range(0, 10)', 9, "--workers 9"),
        ('"--workers", type=int, choices=COUNTS', 9, None),
        ('"--workers", type=int, nargs="+"', 9, None),
        ('"--workers", type=int, nargs="?"', 9, None),  # `--workers --data x` may be typed
        ('"--workers", action="count"', 9, None),
        ('"--workers", action=Workers', 9, None),
        ('"--workers", type=lambda text: 2 * int(text)', 9, None),
        ('"--workers", type=positive_int', 9, "--workers 9"),
        ('"--pin", type=int', True, "--pin 1"),
        ('"--pin", type=int', False, "--pin 0"),
        ('"--pin", type=bool', True, "--pin 1"),
        ('"--pin", type=bool', False, None),  # bool("False") is true
        ('"--pin"', True, "--pin 1"),
        ('"--pin"', False, None),
        ('"--pin", type=str2bool', False, "--pin False"),
        ('"--pin", type=lambda text: text.lower() == "true"', False, "--pin False"),
        ('"--pin", type=lambda text: text == "yes"', True, None),
        ('"--pin", action="store_const", const=True', True, None),
    ],
)
def test_an_option_is_given_what_it_reads_as_the_value(
    declared: str, value: int, option: str | None
) -> None:
    name, axis = ("pin", "pin_memory") if "--pin" in declared else ("workers", "num_workers")
    text = (
        f"parser = argparse.ArgumentParser()\nparser.add_argument({declared})\n"
        f"args = parser.parse_args()\ndata = [0.0]\n"
        f"loader = DataLoader(data, {axis}=args.{name})  # train loader\n"
    )
    facts = started(text)
    settings = (
        Settings(num_workers=value) if name == "workers" else Settings(pin_memory=bool(value))
    )
    again = rerun(facts, settings)
    assert (again.options if again is not None else None) == ((option,) if option else None)
    assert bool(written(facts, settings).code) == (option is None)


def test_a_variable_that_the_script_sets_itself_is_no_option() -> None:
    loader = LOADER.format('int(os.environ.get("WORKERS", "4"))')
    for line, advised in (
        ('os.environ["WORKERS"] = "2"', None),
        ('os.environ["OTHER"] = "2"', ("WORKERS=9",)),
        ('os.environ.setdefault("WORKERS", "2")', ("WORKERS=9",)),
    ):
        assert _options(started(f"{PLAIN}{line}\n{loader}"), num_workers=9) == advised


@pytest.mark.parametrize("words", ["None", "argv", "sys.argv[1:]", "args=None"])
def test_what_is_parsed_of_the_command_line_is_an_option(words: str) -> None:
    text = ARGPARSE.replace("parse_args()", f"parse_args({words})")
    assert _options(started(text + LOADER.format("args.workers")), num_workers=9) == ("-j 9",)


def test_what_arrives_as_text_is_never_told_false() -> None:
    text = PLAIN + 'pin = bool(os.environ.get("PIN"))\n'
    text += "loader = DataLoader(data, pin_memory=pin)  # train loader\n"
    assert _options(started(text), pin_memory=True) == ("PIN=1",)
    assert _options(started(text), pin_memory=False) is None
    words = (
        WORDS + 'loader = DataLoader(data, pin_memory=bool(options.get("pin")))  # train loader\n'
    )
    assert _options(started(words), pin_memory=True) == ("pin=1",)
    assert _options(started(words), pin_memory=False) is None


def test_a_switch_of_absl_takes_no_word() -> None:
    text = ABSL.replace('DEFINE_integer("num_workers", 4', 'DEFINE_boolean("pin", False')
    text += "loader = DataLoader(data, pin_memory=FLAGS.pin)  # train loader\n"
    assert _options(started(text), pin_memory=True) == ("--pin",)
    assert _options(started(text), pin_memory=False) == ("--nopin",)


@pytest.mark.parametrize(
    ("given", "on", "off"),
    [
        ("default=False", "--pin True", "--pin False"),
        ("type=bool", "--pin True", "--pin False"),
        ("type=int", "--pin 1", "--pin 0"),
        ("type=str", "--pin 1", None),
        ('default="no"', "--pin 1", None),
    ],
)
def test_a_value_of_click_is_spelled_as_its_type_reads_it(
    given: str, on: str, off: str | None
) -> None:
    facts = started(CLICK.replace('"--pin/--no-pin", default=False', f'"--pin", {given}'), "x")
    assert _options(facts, pin_memory=True) == (on,)
    assert _options(facts, pin_memory=False) == ((off,) if off else None)


@pytest.mark.parametrize("given", ["multiple=True", "type=click.IntRange(0, 4)", "count=True"])
def test_an_option_of_click_that_takes_other_values_is_none(given: str) -> None:
    facts = started(CLICK.replace("default=4", given), "x")
    assert _options(facts, num_workers=9) is None


def test_an_option_in_a_group_of_a_subcommand_follows_it() -> None:
    text = """
parser = argparse.ArgumentParser()
train = parser.add_subparsers().add_parser("train")
group = train.add_argument_group("data")
group.add_argument("--workers", type=int)
args = parser.parse_args()
data = [0.0]
"""
    again = rerun(started(text + LOADER.format("args.workers"), "train"), NINE)
    assert again is not None and again.command == "python train.py train --workers 9"


@pytest.mark.parametrize(
    ("own", "settings", "after"),
    [
        ("dataloader_num_workers=4, dataloader_prefetch_factor=4", Settings(num_workers=0),
         "dataloader_num_workers=0, dataloader_prefetch_factor=None"),  # else Trainer refuses it
        ("dataloader_num_workers=4, dataloader_persistent_workers=True", Settings(num_workers=0),
         "dataloader_num_workers=0, dataloader_persistent_workers=False"),
        ("seed=1", Settings(pin_memory=False), "seed=1, dataloader_pin_memory=False"),
        ("dataloader_pin_memory=False", Settings(pin_memory=True), "dataloader_pin_memory=True"),
    ],
)  # fmt: skip
def test_trainer_is_told_by_its_own_arguments(own: str, settings: Settings, after: str) -> None:
    text = f"from transformers import TrainingArguments\nargs = TrainingArguments('out', {own})\n"
    facts = started(text + PLAIN + LOADER.format(4), loader={"library": "transformers"})
    assert f"+ args = TrainingArguments('out', {after})" in written(facts, settings).code


def test_no_workers_are_advised_in_trainer_s_words_where_no_line_is_known() -> None:
    facts = started(PLAIN + LOADER.format(4), loader={"library": "transformers"})
    said = written(facts, Settings(num_workers=0)).idea or ""
    assert "`dataloader_num_workers=0" in said and "in TrainingArguments." in said
    assert "timeout" not in said
