"""The tables of docs/outside.md from stored rows: what was measured, where, and what is not right.

    python benchmarks/outside_page.py --where TEXT [--revision REVISION] [--public FILE…]
                                      [--dlio FILE…] [--note NAME=TEXT]… [--page docs/outside.md]

FILEs are what `public_scripts.py --json` and `dlio.py --json` wrote; of a name that comes twice the
last row counts. What lies between the page's marks for each (`<!-- measured: public-cpu -->`,
`<!-- measured: dlio -->`) is replaced. Below each table every row that is wrong or decides nothing
is told with its figures; --note adds an explanation, which no script can know.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import dlio
import public_table
from claimed import Claim
from public_cases import CASES
from public_truth import Timing, share_of

PAGE = Path(__file__).parents[1] / "docs" / "outside.md"
PUBLIC, DLIO = "public-cpu", "dlio"
NOTHING = "decides nothing"


def filled(page: str, mark: str, text: str) -> str:
    """The page with `text` between the marks of that name. Raises ValueError where it has none."""
    begin, end = f"<!-- measured: {mark} -->\n", f"<!-- end: {mark} -->"
    if page.count(begin) != 1 or page.count(end) != 1:
        raise ValueError(f"no marks for {mark}")
    before, _, rest = page.partition(begin)
    return before + begin + text.strip() + "\n" + end + rest.partition(end)[2]


def rows_in(files: Sequence[Path]) -> list[dict[str, Any]]:
    """Of each name the last one. Raises ValueError on rows too old to hold what is judged."""
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines() if line]
    for row in rows:
        of_public = "why" in row and "said" in row
        if of_public and "claim" not in row["said"]:
            raise ValueError(f"{row['name']}: a row without what the report claims")
    return list({row["name"]: row for row in rows}.values())


def points(share: float) -> str:
    return f"{100 * share:.0f}"


def between(low: float, high: float) -> str:
    return f"{points(low)} to {points(high)} %"


def larger(names: Sequence[tuple[str, float]]) -> str:
    """What leaves a row open, the larger part first: in points."""
    ordered = sorted(names, key=lambda pair: -pair[1])
    return ", ".join(f"{points(of)} points {name}" for name, of in ordered)


def n_rounds(count: int | None) -> str:
    return "no round" if not count else "1 round" if count == 1 else f"{count} rounds"


def shares_of(row: dict[str, Any]) -> list[float]:
    """What ready batches saved in each run that got as far. Older rows kept the halves apart."""
    pairs = row.get("pairs")
    if pairs is None:
        runs = row["runs"]
        if len(runs["plain"]) != len(runs["ready"]):  # which belongs to which is not known
            return [row["truth"]["share"]]
        halves = zip(runs["plain"], runs["ready"], strict=True)
        return [1 - ready["step_ms"] / plain["step_ms"] for plain, ready in halves]
    return [share_of(Timing(**plain), Timing(**ready)) for plain, ready in pairs]


def miss_of_public(row: dict[str, Any]) -> str | None:
    """What a row that is wrong or decides nothing rests on; None: it is right."""
    said, truth = row.get("said") or {}, row.get("truth") or {}
    undecided = public_table.undecided(row)
    if not row["why"] and undecided is None:
        return None
    told = "; ".join(row["why"]) or str(undecided)
    if not public_table.judged(row):
        return f"{told.rstrip('.')}."
    claim = Claim(**said["claim"]) if said.get("claim") else None
    runs = " and ".join(points(share) for share in shares_of(row))
    parts = [("of the truth's own", truth["noise"])]
    if claim is not None:
        parts.append(("of our interval", claim.reaches(truth["share"])))
    said_of_it = "none" if claim is None else f"{points(claim.share)} %"
    if claim is not None and claim.high > claim.low:
        said_of_it += f", {between(claim.low, claim.high)}"
    return (
        f"{told}. The runs alone save {runs} % with ready batches; we say {said_of_it}, by "
        f"{n_rounds(said.get('n_rounds'))} ({said['bound']}, {said['severity']}). Noise: "
        f"{larger(parts)}."
    )


def miss_of_dlio(row: dict[str, Any]) -> str | None:
    """Likewise, beside DLIO's utilisation and its own waiting."""
    if "au" not in row:
        return row["error"].splitlines()[-1][:160]
    told = [dlio.within(row), dlio.within(row, dlio.WAITING)]
    if told == ["yes", "yes"]:
        return None
    text = f"beside AU {told[0].strip('*')}, beside its waiting {told[1].strip('*')}."
    if row["input"] is None:
        return f"{text} We give no share of the input."
    claim = Claim(**row["input"])
    reach = claim.reaches(1 - row["au_whole"])
    of_waiting = claim.reaches(row["waited"])
    open_parts = larger(
        [("of DLIO's own", row["own_noise"]), ("of our interval", max(reach, of_waiting))]
    )
    differs = 100 * (1 - claim.share - row["au_whole"])
    of_load = 100 * (row["waited"] - claim.share)
    rounds = n_rounds((row.get("ablation") or {}).get("n_rounds"))
    off = f"We are {differs:+.1f} and {of_load:+.1f} points off, by {rounds}."
    return f"{text} {off} Noise: {open_parts}."


def misses(lines: Mapping[str, str | None], notes: Mapping[str, str]) -> str:
    """A list of those that have something to tell, with what is noted of them."""
    known = [(name, text) for name, text in lines.items() if text is not None]
    if not known:
        return "No row is wrong, and none decides nothing."
    told = [
        f"- `{name}`: {text}" + (f" {notes[name].strip()}" if name in notes else "")
        for name, text in known
    ]
    return "What is not right, or decides nothing, and by which figures:\n\n" + "\n".join(told)


def section(
    where: str, table: str, lines: Mapping[str, str | None], notes: Mapping[str, str]
) -> str:
    return f"{where}\n\n{table.strip()}\n\n{misses(lines, notes)}\n"


def printed(print_it: Any, rows: list[dict[str, Any]]) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        print_it(rows)
    return out.getvalue()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--public", type=Path, nargs="+", default=[])
    parser.add_argument("--dlio", type=Path, nargs="+", default=[])
    parser.add_argument("--where", required=True, help="machine, torch, options: one sentence")
    parser.add_argument("--revision", help="told behind it")
    parser.add_argument("--note", action="append", default=[], metavar="NAME=TEXT")
    parser.add_argument("--page", type=Path, default=PAGE)
    args = parser.parse_args()
    notes = dict(note.partition("=")[::2] for note in args.note)
    where = args.where + (f" Revision {args.revision}." if args.revision else "")
    page = args.page.read_text()
    if args.public:
        rows = [public_table.judged_anew(row) for row in rows_in(args.public)]
        order = [case.name for case in CASES]
        rows.sort(key=lambda row: order.index(row["name"]))
        lines = {row["name"]: miss_of_public(row) for row in rows}
        table = printed(public_table.print_tables, rows)
        page = filled(page, PUBLIC, section(where, table, lines, notes))
    if args.dlio:
        rows = dlio.in_order(rows_in(args.dlio))
        lines = {row["name"]: miss_of_dlio(row) for row in rows}
        table = printed(dlio.print_table, rows)
        page = filled(page, DLIO, section(where, table, lines, notes))
    args.page.write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
