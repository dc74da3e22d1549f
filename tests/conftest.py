"""Say what was skipped and how to supply it; with ``SANDLIFT_REQUIRE_ALL=1`` a skip is a failure."""

from __future__ import annotations

import os
import signal
from collections import Counter
from typing import TYPE_CHECKING

import pytest

# Plain modules whose asserts explain themselves; here, before any of them can have been imported.
pytest.register_assert_rewrite(
    "archive.exports",
    "audit.planting",
    "cli.program",
    "e2e.lift",
    "restore.planned",
    "security.ground",
    "store.contract",
    "store.samples",
    "support.tree",
    "transports.contract",
)

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter


def pytest_configure() -> None:
    """Gives child processes what a person's shell would: buffered output, and an interrupt that is not ignored."""
    os.environ.pop("PYTHONUNBUFFERED", None)
    # A configuration file of whoever runs the tests is not what they test.
    os.environ["SANDLIFT_CONFIG"] = ""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def skip_reasons(reporter: TerminalReporter) -> Counter[str]:
    """How often each reason to skip was given, by tests and by whole modules."""
    reasons: Counter[str] = Counter()
    for report in reporter.stats.get("skipped", []):
        text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reasons[" ".join(text.removeprefix("Skipped: ").split())] += 1
    return reasons


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    is_worker = hasattr(session.config, "workerinput")
    if (
        os.environ.get("SANDLIFT_REQUIRE_ALL") == "1"
        and not is_worker
        and session.exitstatus == pytest.ExitCode.OK
        and reporter is not None
        and skip_reasons(reporter)
    ):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    for reason, count in sorted(skip_reasons(terminalreporter).items()):
        terminalreporter.write_line(f"skipped: {reason} [{count} {'test' if count == 1 else 'tests'}]")
