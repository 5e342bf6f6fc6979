"""Nothing that looks like a secret is in a file of a run folder."""

from __future__ import annotations

import base64
import gzip
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from loaderdoctor.commands.sweep.plan import SweepOptions
from loaderdoctor.errors import UsageError
from loaderdoctor.secrets import is_secret_name, masked

GITHUB = "ghp_" + "a1B2" * 9


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--api-key", "X1", "--epochs", "3"], ["--api-key", "***", "--epochs", "3"]),
        (["--api_key=X1"], ["--api_key=***"]),
        (["token=X1", "lr=0.1"], ["token=***", "lr=0.1"]),
        (["wandb.apiKey=X1"], ["wandb.apiKey=***"]),
        (["+logger.password=X1=="], ["+logger.password=***"]),
        (["--use-auth", "--batch-size", "8"], ["--use-auth", "--batch-size", "8"]),
        (["-password", "X1"], ["-password", "***"]),
        (["s3://me:X1@host/bucket"], ["s3://me:***@host/bucket"]),
        (["--data=https://u:X1@h/x?y=1"], ["--data=https://u:***@h/x?y=1"]),
        (["--note", f"made with {GITHUB}"], ["--note", "made with ***"]),
        (
            ["--tokenizer", "bert", "--max-tokens", "9"],
            ["--tokenizer", "bert", "--max-tokens", "9"],
        ),
        (["--sort-key", "date", "--key", "k"], ["--sort-key", "date", "--key", "k"]),
        (["https://h/c?sp=r&sig=X1%3D&se=9"], ["https://h/c?sp=r&sig=***&se=9"]),
        (["--data=s3://b/k?X-Amz-Signature=X1#a"], ["--data=s3://b/k?X-Amz-Signature=***#a"]),
        (["https://h/d.csv?key=k&accessToken=X1"], ["https://h/d.csv?key=k&accessToken=***"]),
        (["https://example.org/a:b@c"], ["https://example.org/a:b@c"]),
    ],
)
def test_values_that_look_like_secrets_are_masked(words: list[str], shown: list[str]) -> None:
    assert list(masked(words)) == shown


@pytest.mark.parametrize("name", ["--hf-token", "AWS_SECRET_ACCESS_KEY", "dbPassword", "x.auth"])
def test_secrets_are_told_by_their_names(name: str) -> None:
    assert is_secret_name(name)


def test_a_sweep_saves_no_secret_and_says_so_when_resumed(tmp_path: Path) -> None:
    options = SweepOptions(target=("train.py", "--api-key", "X1-secret", "--lr", "1"))
    saved = options.saved()
    assert "X1-secret" not in json.dumps(saved)
    again = json.loads(json.dumps(saved))
    with pytest.raises(UsageError, match="look like secrets"):
        SweepOptions(target=(), resume=tmp_path).resumed(again)
    again["target"] = ["train.py", "--lr", "1"]
    assert SweepOptions(target=(), resume=tmp_path).resumed(again).target[-1] == "1"


SCRIPT = """
import json, os, sys, psutil, torch
from torch.utils.data import DataLoader, Dataset
class Data(Dataset):
    def __len__(self): return 40
    def __getitem__(self, i):
        sum(range(3000))
        return torch.zeros(8)
if __name__ == "__main__":
    initial = open("/proc/self/environ", "rb").read().split(b"\\0")
    channel = [x for x in initial if x.startswith(b"LOADERDOCTOR_CHANNEL=")]
    me = psutil.Process()
    commands = [" ".join(p.cmdline()) for p in (me, *me.parents())]
    with open("seen.json", "w") as out:
        json.dump({"channel": channel[0].decode().partition("=")[2], "commands": commands,
                   "left": "LOADERDOCTOR_CHANNEL" in os.environ, "args": sys.argv[1:]}, out)
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for epoch in range(200):
        for batch in DataLoader(Data(), batch_size=4, num_workers=1):
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
"""


def contents(folder: Path) -> bytes:
    """Everything below a folder, unpacked, with the names of the files."""
    found = []
    for path in sorted(folder.rglob("*")):
        found.append(str(path).encode())
        if path.is_file():
            data = path.read_bytes()
            found.append(data)
            if data.startswith(b"\x1f\x8b"):
                found.append(gzip.decompress(data))
            if data.startswith(b"PK"):
                with zipfile.ZipFile(path) as archive:
                    found += [archive.read(name) for name in archive.namelist()]
    return b"\0".join(found)


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [["diagnose", "--budget", "12"], ["sweep", "--grid", "num_workers=0,1"], ["run"]]
)
def test_a_run_leaves_no_secret_behind(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    options = ["--budget", "12"] if command[0] == "sweep" else []
    output = tmp_path / "run"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "loaderdoctor", *command, *options, "--output", str(output)),
            *("train.py", "--api-key", "KEY-0123456789", f"token={GITHUB}"),
        ],
        cwd=tmp_path,
        env={**os.environ, "SECRET_TOKEN": "ENV-0123456789", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert seen["args"] == ["--api-key", "KEY-0123456789", f"token={GITHUB}"]  # the script's own
    assert seen["left"] is False
    key = json.loads(base64.b64decode(seen["channel"]))["authkey"]
    assert len(base64.b64decode(key)) >= 32
    everything = contents(output)
    assert b"num_workers" in everything
    for secret in (
        "KEY-0123456789",
        GITHUB,
        "ENV-0123456789",
        "SECRET_TOKEN",
        key,
        seen["channel"],
    ):
        assert secret.encode() not in everything, secret
        assert secret not in done.stdout + done.stderr
    # What `ps` shows to anyone: our processes carry the script's arguments only in the user's own.
    assert not [line for line in seen["commands"] if key in line or seen["channel"] in line]
    assert not [line for line in seen["commands"] if "ENV-0123456789" in line]
    told = json.loads((output / "report.json").read_bytes())["environment"]
    assert "python" in told
    assert "variables" not in told
