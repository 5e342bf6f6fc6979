"""Changes of the user's files, tried by compiling them in place, and as they are printed.

What is printed is the difference between the file and the changed file, in the file's own lines
and indents; so whoever writes it there gets the file that was tried.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from loaderdoctor.advice.call_edit import CannotEdit
from loaderdoctor.advice.source import Source, unknown_names

# Lines that two changes have between them at most for both to be shown as one.
MAX_BETWEEN = 3
# Around classes and functions of a module, as PEP 8 and linters want them.
BLANK_LINES = 2


@dataclass(frozen=True, slots=True)
class Patch:
    """Files as they are and as they shall be. Every one of them compiles."""

    files: tuple[tuple[Source, str], ...]

    def printed(self) -> str:
        """Each place with its line, then `- old`, `+ new` and unchanged lines."""
        return "\n".join(
            line for source, after in self.files for line in _hunks(source, after.split("\n"))
        )


class Editor:
    """Collects changes of files. Nothing is written anywhere."""

    def __init__(self) -> None:
        self._edits: dict[Source, list[tuple[int, int, str]]] = {}
        self._definitions: dict[tuple[Source, int], list[str]] = {}

    @property
    def changes(self) -> bool:
        """Whether anything is to be changed."""
        return bool(self._edits)

    def replace(self, source: Source, span: tuple[int, int], text: str) -> None:
        """Put `text` where that part of the file stands."""
        self._edits.setdefault(source, []).append((*span, text))

    def insert(self, source: Source, at: int, text: str) -> None:
        """Put whole lines in front of the line that begins at `at`; the same text once only."""
        before = source.text[:at]
        gap = "\n" if before and not before.endswith("\n") else ""
        edit = (at, at, f"{gap}{text.rstrip()}\n")
        if edit not in self._edits.get(source, []):
            self._edits.setdefault(source, []).append(edit)

    def insert_apart(self, source: Source, at: int, text: str) -> None:
        """As `insert`, of definitions: with blank lines above and below, however many there are."""
        there = self._definitions.setdefault((source, at), [])
        if text.strip() in there:
            return
        above, below = source.text[:at], source.text[at:]
        gap = BLANK_LINES + 1 - (len(above) - len(above.rstrip("\n")))
        gap = max(0, gap) if above.strip() and not there else 0
        after = BLANK_LINES - (len(below) - len(below.lstrip("\n"))) if below.strip() else 0
        there.append(text.strip())
        edit = (at, at, "\n" * gap + text.strip() + "\n" * (1 + max(0, after)))
        self._edits.setdefault(source, []).append(edit)

    def patch(self) -> Patch:
        """All of them together.

        Raises CannotEdit where they meet, do not compile, or read names that are bound nowhere.
        """
        files = []
        for source, edits in self._edits.items():
            after, reached = [], 0
            for start, end, text in sorted(edits, key=lambda x: x[:2]):
                if start < reached:
                    raise CannotEdit("two changes meet in one line")
                after += [source.text[reached:start], text]
                reached = end
            text = "".join((*after, source.text[reached:]))
            if text != source.text:
                _check(source, text)
                files.append((source, text))
        if not files:
            raise CannotEdit("the script has it already")
        return Patch(tuple(files))


def _check(source: Source, after: str) -> None:
    try:
        compile(after, source.name, "exec", dont_inherit=True)
        unknown = unknown_names(after) - unknown_names(source.text)
    except (SyntaxError, ValueError) as error:
        raise CannotEdit(f"the changed script does not compile: {error}") from None
    if unknown:
        raise CannotEdit(f"the script has no {', '.join(sorted(unknown))}")


def _hunks(source: Source, after: Sequence[str]) -> Iterator[str]:
    before = source.text.split("\n")
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    groups: list[list[tuple[str, int, int, int, int]]] = []
    for code in matcher.get_opcodes():
        if code[0] == "equal":
            continue
        if groups and code[1] - groups[-1][-1][2] <= MAX_BETWEEN:
            groups[-1].append(code)
        else:
            groups.append([code])
    for group in groups:
        first = group[0]
        yield f"{source.name}:{first[1] + 1}"
        at = first[1]
        for _, a, b, c, d in group:
            yield from (f"  {line}".rstrip() for line in before[at:a])
            yield from (f"- {line}".rstrip() for line in before[a:b])
            yield from (f"+ {line}".rstrip() for line in after[c:d])
            at = b
        if all(a == b for _, a, b, _, _ in group) and at < len(before):  # where the lines go
            yield f"  {before[at]}".rstrip()
