"""The user's lines, changed: only the arguments named, everything else as it was written."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from loaderdoctor.advice.code import Written, edit_loader_call, edit_transfer, loader_arguments
from loaderdoctor.settings import Settings

SIX = Settings(num_workers=6)
PINNED_SIX = Settings(num_workers=6, pin_memory=True)

SPREAD = """\
        self.loader = torch.utils.data.DataLoader(
            train_set,
            batch_size=64,  # größer hilft nicht
            num_workers=args.workers,
            collate_fn=(lambda b: b)  # samples as they are
        )"""
SPREAD_AFTER = """\
self.loader = torch.utils.data.DataLoader(
    train_set,
    batch_size=64,  # größer hilft nicht
    num_workers=6,
    collate_fn=(lambda b: b),  # samples as they are
    pin_memory=True,
)"""


@pytest.mark.parametrize(
    ("code", "after"),
    [
        ("loader = DataLoader(ds)", "loader = DataLoader(ds, num_workers=6)"),
        ("loader = DataLoader(ds, num_workers=2)", "loader = DataLoader(ds, num_workers=6)"),
        ("    loader = DataLoader(ds, num_workers = 0 )",
         "loader = DataLoader(ds, num_workers = 6 )"),
        ("DataLoader(ds, 8, True, None, None, 2, f)",
         "DataLoader(ds, 8, True, None, None, 6, f)"),
        ("for x in DataLoader(ds):", "for x in DataLoader(ds, num_workers=6):"),
        ("'train': DataLoader(ds, batch_size=2,),",
         "'train': DataLoader(ds, batch_size=2, num_workers=6),"),
        ("return DataLoader(make(ds(1)), batch_size=int(a[0]))",
         "return DataLoader(make(ds(1)), batch_size=int(a[0]), num_workers=6)"),
        ("x = MyDataLoader(ds, 'a)b')", "x = MyDataLoader(ds, 'a)b', num_workers=6)"),
        ("x = FastLoader(ds)", "x = FastLoader(ds, num_workers=6)"),
        ("x = build(ds, num_workers=4)", "x = build(ds, num_workers=6)"),
        ("x = DataLoader(\n    ds,\n)", "x = DataLoader(\n    ds,\n    num_workers=6,\n)"),
        ("x = DataLoader(ds,\n               batch_size=4)",
         "x = DataLoader(ds,\n               batch_size=4, num_workers=6)"),
    ],
)  # fmt: skip
def test_the_call_is_changed_and_the_rest_kept(code: str, after: str) -> None:
    edit = edit_loader_call(code, SIX)
    assert edit.exact
    assert edit.after == after


def test_a_call_over_several_lines_keeps_its_layout_and_comments() -> None:
    edit = edit_loader_call(SPREAD, PINNED_SIX)
    assert edit.after == SPREAD_AFTER
    assert edit.diff() == (
        "  self.loader = torch.utils.data.DataLoader(\n"
        "      train_set,\n"
        "      batch_size=64,  # größer hilft nicht\n"
        "-     num_workers=args.workers,\n"
        "-     collate_fn=(lambda b: b)  # samples as they are\n"
        "+     num_workers=6,\n"
        "+     collate_fn=(lambda b: b),  # samples as they are\n"
        "+     pin_memory=True,\n"
        "  )"
    )


def test_the_second_loader_of_a_line_is_the_one_changed() -> None:
    code = "train, val = DataLoader(a), DataLoader(b)"
    assert edit_loader_call(code, SIX, index=1).after == (
        "train, val = DataLoader(a), DataLoader(b, num_workers=6)"
    )


@pytest.mark.parametrize("held", [{}, {"num_workers": 0, "shuffle": True}])
def test_what_unpacked_keywords_may_hold_already_is_written_over(held: dict[str, object]) -> None:
    edit = edit_loader_call("x = DataLoader(ds, **options)", SIX)
    assert edit.after == 'x = DataLoader(ds, **{**options, "num_workers": 6})'
    scope = {"DataLoader": lambda ds, **given: given, "ds": None, "options": held}
    exec(edit.after, scope)
    assert scope["x"] == {**held, "num_workers": 6}


def test_a_keyword_next_to_unpacked_ones_is_changed_where_it_stands() -> None:
    edit = edit_loader_call("x = DataLoader(ds, num_workers=2, **options)", SIX)
    assert edit.after == "x = DataLoader(ds, num_workers=6, **options)"


def test_a_call_that_unpacks_twice_gives_a_hint() -> None:
    edit = edit_loader_call("x = DataLoader(ds, **common, **options)", SIX)
    assert not edit.exact
    assert edit.after == (
        "`num_workers=6` where the DataLoader is built (the call unpacks several **arguments)."
    )


@pytest.mark.parametrize(
    "code",
    [None, "", "loader = DataLoader(ds,", "x = DataLoader(*parts)", "loader = pipe | more",
     "x = fast_loader(ds)", "x = build(ds, batch_size=4)"],
)  # fmt: skip
def test_what_cannot_be_edited_is_a_hint(code: str | None) -> None:
    edit = edit_loader_call(code, PINNED_SIX)
    assert not edit.exact
    assert edit.after.startswith("`num_workers=6, pin_memory=True` where the DataLoader is built")
    assert Written.of([edit]) == Written(code="", idea=edit.after)


def test_no_workers_resets_what_torch_accepts_only_with_workers() -> None:
    code = "DataLoader(ds, num_workers=2, prefetch_factor=4, persistent_workers=True)"
    assert edit_loader_call(code, Settings(num_workers=0)).after == (
        "DataLoader(ds, num_workers=0, prefetch_factor=None, persistent_workers=False)"
    )
    assert edit_loader_call("DataLoader(ds, num_workers=2)", Settings(num_workers=0)).after == (
        "DataLoader(ds, num_workers=0)"
    )


def test_a_loader_without_workers_as_it_is_edited_gives_batches() -> None:
    code = "DataLoader(ds, 4, num_workers=2, timeout=30, multiprocessing_context='spawn')"
    edited = edit_loader_call(code, Settings(num_workers=0)).after
    batches = list(eval(edited, {"DataLoader": DataLoader, "ds": range(8)}))
    assert [batch.tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_the_start_method_is_an_argument_too_and_loop_axes_are_none() -> None:
    settings = Settings(start_method="spawn", side_stream=True, non_blocking=True)
    assert loader_arguments(settings) == {"multiprocessing_context": "spawn"}
    edit = edit_loader_call("DataLoader(ds, num_workers=2)", settings)
    assert edit.after == 'DataLoader(ds, num_workers=2, multiprocessing_context="spawn")'


ARGUMENTS = st.lists(
    st.sampled_from(
        [
            "num_workers=3",
            "num_workers=(n + 1)",
            "pin_memory=False",
            "collate_fn=(lambda b: [x for x in b])",
            "sampler=S(ds, 'é)')",
            "batch_size=8",
            "shuffle=not (a or b)",
        ]
    ),
    unique_by=lambda x: x.partition("=")[0],
    max_size=5,
)
SEPARATORS = st.sampled_from([", ", ",", ",\n    ", ",  # c)omment\n    "])
CHANGES = st.builds(
    Settings,
    num_workers=st.none() | st.integers(1, 64),
    pin_memory=st.none() | st.just(True),
    prefetch_factor=st.none() | st.integers(1, 9),
    persistent_workers=st.none() | st.just(True),
)


@given(arguments=ARGUMENTS, separator=SEPARATORS, trailing=st.booleans(), changes=CHANGES)
def test_an_edit_holds_the_new_arguments_and_all_others(
    arguments: list[str], separator: str, trailing: bool, changes: Settings
) -> None:
    inner = separator.join(["ds", *arguments])
    end = ",\n)" if trailing else ")"
    edit = edit_loader_call(f"loader = DataLoader({inner}{end}", changes)
    assert edit.exact
    call = ast.parse(edit.after).body[0].value  # type: ignore[attr-defined]
    held = {k.arg: ast.unparse(k.value) for k in call.keywords}
    wanted = {k: repr(v) for k, v in loader_arguments(changes).items()}
    before = {
        k.arg: ast.unparse(k.value)
        for k in ast.parse(f"f({', '.join(arguments)})", mode="eval").body.keywords  # type: ignore[attr-defined]
    }
    if "num_workers=(n + 1)" in arguments and "num_workers" not in wanted:
        ahead = changes.prefetch_factor
        wanted |= {"persistent_workers": "n + 1 > 0"} if changes.persistent_workers else {}
        wanted |= {"prefetch_factor": f"{ahead} if n + 1 else None"} if ahead else {}
    assert held == {**before, **wanted}
    assert [ast.unparse(a) for a in call.args] == ["ds"]
    assert edit.after.count("# c)omment") == edit.before.count("# c)omment")  # type: ignore[union-attr]


@given(st.text(max_size=60))
def test_any_text_gives_an_edit_or_a_hint_and_no_error(text: str) -> None:
    for code in (text, f"DataLoader({text})", f"x.to({text})"):
        edit_loader_call(code, PINNED_SIX)
        edit_transfer(code)


@pytest.mark.parametrize(
    ("call", "code", "after"),
    [
        ("to", "x = x.to(device)", "x = x.to(device, non_blocking=True)"),
        ("to", "x, y = x.to(d), y.to(d)",
         "x, y = x.to(d, non_blocking=True), y.to(d, non_blocking=True)"),
        ("to", "x = x.to(torch.float32).to(d)", "x = x.to(torch.float32).to(d, non_blocking=True)"),
        ("to", 'x = f(x.to(d)).to("cpu")', 'x = f(x.to(d, non_blocking=True)).to("cpu")'),
        ("to", "x = x.to(d).to(device=torch.device('cpu'))",
         "x = x.to(d, non_blocking=True).to(device=torch.device('cpu'))"),
        ("to", "x = x.to(d, non_blocking=False)", "x = x.to(d, non_blocking=True)"),
        ("to", "loss = f(x.to(device=d))", "loss = f(x.to(device=d, non_blocking=True))"),
        ("to", "batch = {k: v.to(d) for k, v in batch.items()}",
         "batch = {k: v.to(d, non_blocking=True) for k, v in batch.items()}"),
        ("cuda", "x = x.cuda()", "x = x.cuda(non_blocking=True)"),
        ("cuda", "x = x.cuda(0, False)", "x = x.cuda(0, True)"),
        ("copy_", "static.copy_(x)", "static.copy_(x, non_blocking=True)"),
    ],
)  # fmt: skip
def test_copies_become_non_blocking(call: str, code: str, after: str) -> None:
    edit = edit_transfer(code, call)
    assert edit.exact
    assert edit.after == after


@pytest.mark.parametrize("code", [None, "x = move(x)", "x = x.to(torch.half)", "x = x.to(d, True)"])
def test_a_line_without_the_call_gives_a_hint(code: str | None) -> None:
    edit = edit_transfer(code)
    assert not edit.exact
    assert "non_blocking=True" in edit.after
