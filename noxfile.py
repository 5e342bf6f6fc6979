"""The project's tasks: `nox` lists them, `nox -s NAME` runs one in the environment it is called in.

They use the calling environment, because torch is several gigabytes; install it once with
`pip install -e '.[recipes,dev]'`. Only `matrix` makes environments of its own, one for each
Python and torch: `nox -s "matrix-3.10(torch='oldest')"`.
"""

import nox

nox.options.sessions = []
nox.options.default_venv_backend = "none"

# Python and torch that go together, by the classifiers of torch's releases.
OLDEST, NEWEST = ("torch==2.6.0", "torchvision==0.21.0"), ("torch>=2.14", "torchvision>=0.29")
PYTHONS = {
    "3.10": ("oldest", "newest"),
    "3.11": ("oldest", "newest"),  # CI runs 3.11 with the newest: see .ci/run
    "3.12": ("oldest", "newest"),
    "3.13": ("oldest", "newest"),
    "3.14": ("newest",),
}
# What a matrix row runs unless told otherwise: all that depends on torch or Python, minutes long.
ROW = ("trace", "attribution", "findings", "diagnosis", "instrument", "sweep", "faults")

CODE = ("loaderdoctor", "recipes", "tests", "benchmarks", "docs", "noxfile.py")
# torch's own threads fight the workers on small machines (`thread-oversubscription`).
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@nox.session
def lint(session: nox.Session) -> None:
    """Lint and check the format."""
    session.run("python", "-m", "ruff", "check", *CODE)
    session.run("python", "-m", "ruff", "format", "--check", *CODE)


@nox.session
def types(session: nox.Session) -> None:
    """Check types, strictly, in package and tests."""
    session.run("python", "-m", "mypy")


@nox.session
def test(session: nox.Session) -> None:
    """Run the representative suite, or what the arguments after `--` select."""
    session.run("python", "-m", "pytest", *session.posargs, env=ONE_THREAD)


@nox.session(python=list(PYTHONS), venv_backend="virtualenv|venv")
@nox.parametrize("torch", ["oldest", "newest"])
def matrix(session: nox.Session, torch: str) -> None:
    """Run the suite on another Python and torch; installs both (several gigabytes)."""
    if torch not in PYTHONS[str(session.python)]:
        session.skip(f"torch {OLDEST[0]} has no build for Python {session.python}")
    session.install(*(OLDEST if torch == "oldest" else NEWEST), "-e", ".[recipes,dev]")
    tests = session.posargs or [f"tests/{name}" for name in ROW]
    session.run("python", "-m", "pytest", *tests, env=ONE_THREAD)


@nox.session
def bench(session: nox.Session) -> None:
    """Print the speed and overhead tables (minutes; the machine should be idle)."""
    for script in ("analyze", "hook_overhead", "worker_overhead"):
        session.run("python", f"benchmarks/{script}.py", env=ONE_THREAD)
    session.run("python", "benchmarks/job.py", "--engines", "local", env=ONE_THREAD)


@nox.session
def docs(session: nox.Session) -> None:
    """Write the pages that are generated from the code."""
    session.run("python", "docs/make_findings.py")


@nox.session
def site(session: nox.Session) -> None:
    """Build the documentation as a site, into site/; needs no network."""
    session.run("python", "-m", "mkdocs", "build", "--strict", "--quiet")
