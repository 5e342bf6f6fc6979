"""Arguments that look like secrets, so that no file of a run folder holds them.

Run folders are shown to colleagues and attached to bug reports; the arguments of the user's script
are no part of what they tell. Hiding one too many does no harm.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

MASK = "***"

_WORDS = frozenset(
    (
        *("token", "secret", "password", "passwd", "pwd", "passphrase", "credential"),
        *("credentials", "auth", "authorization", "bearer", "pat"),
        *("apikey", "accesskey", "secretkey", "privatekey"),
    )
)
# Keys that are none: of dicts, frames, tables, and the half of a pair that anyone may have.
_NO_SECRET_KEYS = frozenset(
    ("sort", "frame", "frames", "public", "primary", "group", "batch", "by")
)
_NAMED = re.compile(r"^(?P<name>-{0,2}[A-Za-z_+~][\w.+~-]*)=(?P<value>.+)$", re.DOTALL)
_FLAG = re.compile(r"^--?[A-Za-z][\w.-]*$")
_IN_URL = re.compile(r"(?P<before>[a-z][a-z0-9+.-]*://[^/\s:@]*:)[^/\s@]+(?=@)", re.IGNORECASE)
# A value that a URL asks with, up to the next; a signed URL lets whoever has it in.
_ASKED = re.compile(r"(?<=[?&])(?P<name>[\w.-]+)=[^&#\s]+")
_SIGNED = frozenset(("sig", "signature"))
# What well-known services give out, by its beginning.
_ISSUED = re.compile(
    r"\b(?:sk-[\w-]{16,}|gh[pousr]_\w{20,}|github_pat_\w{20,}|hf_\w{20,}|glpat-[\w-]{16,}"
    r"|xox[abprs]-[\w-]{10,}|AKIA[0-9A-Z]{16}|AIza[\w-]{30,}|eyJ[\w-]{10,}\.[\w-]+\.[\w-]+)"
)


def masked(args: Sequence[str]) -> tuple[str, ...]:
    """The arguments with values that look like secrets replaced by `***`."""
    shown: list[str] = []
    next_is_secret = False
    for arg in args:
        is_flag = _FLAG.match(arg) is not None
        if next_is_secret and not is_flag:
            shown.append(MASK)
        elif (named := _NAMED.match(arg)) and is_secret_name(named["name"]):
            shown.append(f"{named['name']}={MASK}")
        else:
            in_url = _ASKED.sub(_asked, _IN_URL.sub(rf"\g<before>{MASK}", arg))
            shown.append(_ISSUED.sub(MASK, in_url))
        next_is_secret = is_flag and is_secret_name(arg)
    return tuple(shown)


def _asked(found: re.Match[str]) -> str:
    """A value of a URL as it may be shown."""
    name = found["name"]
    signs = name.lower().rpartition("-")[2] in _SIGNED
    return f"{name}={MASK}" if signs or is_secret_name(name) else found[0]


def is_secret_name(name: str) -> bool:
    """Whether an option or setting of this name holds a secret: `--api-key`, `wandb.token`."""
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    words = [word for word in re.split(r"[^a-z0-9]+", apart.lower()) if word]
    if not words:
        return False
    if _WORDS.intersection(words):
        return True
    return words[-1] == "key" and len(words) > 1 and words[-2] not in _NO_SECRET_KEYS
