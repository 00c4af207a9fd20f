#!/usr/bin/env bash
# Make a virtual environment with aorta and everything it needs, from pinned constraints.
#   usage: scripts/setup.sh [folder, default .venv]      PYTHON=python3.12 chooses the interpreter
#   AORTA_SYSTEM_TORCH=1 uses the torch that the interpreter already has (a cluster's module, a container)
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${1:-.venv}
python=${PYTHON:-python3}

# pip names the interpreter between double quotes in every command that it writes: a shell reads these.
case $PWD in
    *[\"\$\`\\]* | *$'\n'*)
        echo "setup: the folder $PWD has a quotation mark, dollar sign, backquote, backslash or line break in its name; move the checkout" >&2
        exit 2
        ;;
esac
written=.
[ ! -e "$venv" ] || written=$venv
if [ ! -w "$written" ]; then
    echo "setup: $(id -un) may not write to $PWD/$venv, which belongs to $(stat -c %U "$written")" >&2
    echo "setup: ask the owner to run make setup there, or clone aorta to your own folder" >&2
    exit 2
fi
if ! command -v "$python" >/dev/null; then
    echo "setup: $python is not installed; install Python 3.10 to 3.13 or set PYTHON" >&2
    exit 2
fi
if [ "$("$python" -c 'print("Python")' 2>/dev/null)" != Python ]; then
    echo "setup: $python is not a Python; set PYTHON to a Python 3.10 to 3.13" >&2
    exit 2
fi
if ! "$python" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))'; then
    echo "setup: $("$python" --version) is not supported; set PYTHON to a Python 3.10 to 3.13" >&2
    exit 2
fi
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    # Debian and Ubuntu ship Python without its venv module.
    package="python$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv"
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$package"
    else
        echo "setup: $python has no venv module; install it (for example: sudo apt-get install $package)" >&2
        exit 2
    fi
fi

extras=train,dev
flags=()
if [ "${AORTA_SYSTEM_TORCH:-0}" = 1 ]; then
    extras=dev
    flags+=(--system-site-packages)
fi
rm -f "$venv/.ready"
if [ ! -x "$venv/bin/python" ]; then
    echo "setup: making $venv with $("$python" --version)"
    "$python" -m venv "${flags[@]}" "$venv"
fi
echo "setup: installing aorta and its packages; the first time takes some minutes, mostly for torch"
trap 'echo "setup: pip failed, see above; without internet or behind a proxy, read docs/troubleshooting.md" >&2' ERR
install=("$venv/bin/python" -m pip install --disable-pip-version-check -c constraints.txt -e ".[$extras]")
if [ -t 1 ]; then
    # One line that changes: which package is at hand.
    "${install[@]}" --progress-bar off | while read -r what name _; do
        case $what in
            Collecting | Downloading | Preparing | Building | Installing) printf '\r\033[Ksetup: %s %s' "$what" "${name:0:60}" ;;
        esac
    done
    printf '\r\033[K'
else
    "${install[@]}" --quiet
fi
trap - ERR
# Compiled once here: every command would compile what it imports where PYTHONDONTWRITEBYTECODE is set.
"$venv/bin/python" -m compileall -q aorta
version=$("$venv/bin/aorta" --version)
touch "$venv/.ready"
echo "setup: $version in $venv"
