#!/bin/sh
# Installs the given requirement into .venv and makes sure there is a WebGPU adapter. For developers, it also installs a
# browser for the page's tests and downloads wheels for the package's tests.
# Usage: tools/setup.sh PYTHON REQUIREMENT     (called by the Makefile)
set -e
python=$1
requirement=$2

may_install() { command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; }
install() { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$@" >/dev/null; }

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "wgemma needs Python 3.11 or newer. Choose one like this: make chat PYTHON=python3.12" >&2
    exit 1
fi
if [ ! -x .venv/bin/pip ]; then
    echo "Creating .venv …"
    if ! "$python" -m venv .venv >/dev/null 2>&1; then
        rm -rf .venv
        # Debian ships Python without its venv module.
        if may_install; then install python3-venv; else echo "Install python3-venv first." >&2; exit 1; fi
        "$python" -m venv .venv
    fi
fi
echo "Installing $requirement into .venv …"
.venv/bin/pip install --quiet --disable-pip-version-check --editable "$requirement"

if ! .venv/bin/python tools/find_adapter.py; then
    if may_install; then
        echo "No WebGPU adapter: installing software Vulkan (mesa-vulkan-drivers) …"
        install mesa-vulkan-drivers || true
        .venv/bin/python tools/find_adapter.py ||
            echo "Still no WebGPU adapter: wgemma will use NumPy, which is slow."
    else
        echo "No WebGPU adapter found. Install your GPU's Vulkan driver, or mesa-vulkan-drivers for a software one."
        echo "Until then, wgemma uses NumPy, which is slow."
    fi
fi

case $requirement in *dev*) ;; *) exit 0 ;; esac
if ! command -v chromium >/dev/null; then
    if may_install; then
        echo "Installing chromium for the page's tests …"
        install chromium
    else
        echo "The page's tests need Chromium: install your system's \`chromium\` package." >&2
    fi
fi
# The wheel's dependencies, so that tests/test_wheel.py can install it into a clean place without the network.
.venv/bin/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"], sep="\n")' |
    .venv/bin/pip download --quiet --disable-pip-version-check --only-binary :all: --dest .venv/wheels --requirement /dev/stdin
