"""What holds for every test."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A busy machine fails no property test: speed is measured in benchmarks/.
settings.register_profile(
    "busy", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("busy")


@pytest.fixture(autouse=True, scope="session")
def _signals_as_in_a_terminal() -> Iterator[None]:
    """A shell starts what runs in its background with Ctrl-C and hang-ups ignored, which programs inherit."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGHUP)}
    if before[signal.SIGINT] == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if before[signal.SIGHUP] == signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True, scope="session")
def _faults_aside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Reports of faults go to a folder of the tests, not to the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture
def no_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are made and not drawn, which takes most of an analysis; each leaves its files, as names only.

    For tests of what is analysed and written. How figures look is tested in `tests/report`.
    """
    from aorta.artefacts.io import write_bytes
    from aorta.report import style

    def save(figure: object, png: Path, svg: Path) -> None:
        for path in (png, svg):
            write_bytes(path, path.name.encode())

    monkeypatch.setattr(style, "save", save)
