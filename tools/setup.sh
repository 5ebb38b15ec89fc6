#!/bin/sh
# Fills .venv with what the given requirement asks for, and sees to it that there is a WebGPU adapter; for makers, also
# that there is a browser for the tests of the page, and wheels for those of the package.
# Usage: tools/setup.sh PYTHON REQUIREMENT     (called by the Makefile)
set -e
python=$1
requirement=$2

may_install() { command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; }
install() { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$@" >/dev/null; }

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "wgemma needs Python 3.11 or newer; say which one to use: make chat PYTHON=python3.12" >&2
    exit 1
fi
if [ ! -x .venv/bin/pip ]; then
    echo "Making .venv …"
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
            echo "Still no WebGPU adapter: the NumPy reference device will be used."
    else
        echo "No WebGPU adapter found. Install your GPU's Vulkan driver, or mesa-vulkan-drivers for a software one;"
        echo "until then the NumPy reference device is used."
    fi
fi

case $requirement in *dev*) ;; *) exit 0 ;; esac
if ! command -v chromium >/dev/null; then
    if may_install; then
        echo "Installing chromium for the tests of the page …"
        install chromium
    else
        echo "The tests of the page need Chromium: install your system's package \`chromium\`." >&2
    fi
fi
# What the wheel depends on, so that tests/test_wheel.py can install it into a clean place without asking the network.
.venv/bin/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"], sep="\n")' |
    .venv/bin/pip download --quiet --disable-pip-version-check --only-binary :all: --dest .venv/wheels --requirement /dev/stdin
