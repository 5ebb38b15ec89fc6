"""Where the tests find their data: the goldens of `../shared/fixtures` when present, those of `tests/data` always."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# Two cores: more BLAS threads than one only fight each other. Must be set before NumPy is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Most of a software adapter's time goes into compiling. Mesa keeps what it compiled: let that be where it always is,
# for both workers and the next run, and not in the folder that `cache` makes.
os.environ.setdefault("MESA_SHADER_CACHE_DIR", os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache"))

# Who runs the tests in the background of a shell ignores Ctrl-C, and so would the programs that the tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import strict_device
from wgemma.gpu.native import NativeDevice, open_floor_device

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "data"
SHARED = ROOT.parent / "shared" / "fixtures"

# A busy machine is no reason to fail; tests that are about time measure it themselves.
settings.register_profile("wgemma", deadline=None)
settings.load_profile("wgemma")


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache folder and a store of the tests' own: theirs are never the user's."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        patch.setenv("WGEMMA_MODELS", str(folder / "store"))
        yield folder


@pytest.fixture(scope="session", autouse=True)
def strict() -> Iterator[None]:
    """Native devices take nothing that a browser would refuse."""
    with strict_device.enforced():
        yield


@pytest.fixture(scope="session")
def shared() -> Path:
    """The full set of goldens; a test that asks for it is skipped in a clone that stands alone."""
    if not SHARED.is_dir():
        pytest.skip("the shared fixtures are not beside this clone")
    return SHARED


@pytest.fixture(scope="session")
def data() -> Path:
    """The small choice of goldens that travels with the repository."""
    return DATA


@pytest.fixture(scope="session")
def blob(data: Path) -> Path:
    """A tiny model with both towers: random weights, and the real template."""
    store = json.loads((data / "ollama-store/EXPECTED.json").read_text())["models"]
    return data / "ollama-store" / str(store["gemma4:tiny"]["model"])


@pytest.fixture(scope="session")
def gpu() -> Iterator[NativeDevice]:
    """All that the adapter has."""
    device = NativeDevice(compact=False)
    yield device
    device.close()


@pytest.fixture(scope="session")
def floor() -> Iterator[NativeDevice]:
    """Exactly WebGPU's default limits, no optional feature: what every browser grants."""
    device = open_floor_device()
    yield device
    device.close()
