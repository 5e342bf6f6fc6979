"""The project's tasks: `nox` lists them, `nox -s NAME` runs one in the environment it is called in.

They use the calling environment, because torch is several gigabytes; install it once with
`pip install -e '.[recipes,plots,dev]'`.
"""

import nox

nox.options.sessions = []
nox.options.default_venv_backend = "none"

CODE = ("loaderdoctor", "recipes", "tests", "benchmarks", "docs", "noxfile.py")
# torch's own threads fight the workers on small machines; see docs/method.md.
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


@nox.session
def bench(session: nox.Session) -> None:
    """Print the speed and overhead tables (minutes; the machine should be idle)."""
    for script in ("analyze", "hook_overhead", "worker_overhead"):
        session.run("python", f"benchmarks/{script}.py", env=ONE_THREAD)


@nox.session
def docs(session: nox.Session) -> None:
    """Write the pages that are generated from the code."""
    session.run("python", "docs/make_findings.py")
