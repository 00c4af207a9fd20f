#!/usr/bin/env bash
# Unpack Nsight Systems from Debian's non-free packages into a folder of its own, for tests: nothing is installed and
# apt's sources stay as they are. It records NVTX ranges and calls of the operating system without a GPU.
# The packages are NVIDIA's under its own licence: for use on this machine, not to be passed on.
#   usage: scripts/install_nsys.sh [folder]        default /opt/aorta-nsys; the program is FOLDER/usr/bin/nsys
set -euo pipefail
folder=${1:-/opt/aorta-nsys}
program=$folder/usr/bin/nsys
suite=trixie # its version, 2023.4, starts reliably several times at once; runs on Debian 12 and later, Ubuntu 22.04 and later

say() { echo "install_nsys: $*" >&2; }

if "$program" --version >/dev/null 2>&1; then
    say "$program is installed: $("$program" --version)"
    exit 0
fi
if [ -d "$folder" ] && [ -n "$(ls -A "$folder")" ]; then
    say "$folder exists, but holds no nsys: give a new folder"
    exit 2
fi
if [ "$(uname -m)" != x86_64 ] || ! command -v apt-get >/dev/null || ! command -v dpkg >/dev/null; then
    say "this script needs apt-get and dpkg on x86-64"
    exit 2
fi
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
if [ ! -r "$keyring" ]; then
    say "$keyring is missing: install debian-archive-keyring"
    exit 2
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{lists/partial,cache/archives/partial,parts,debs}

# The mirror that this machine uses for Debian, if it uses one.
# shellcheck disable=SC2016 # apt expands it
mirror=$(apt-get indextargets --format '$(REPO_URI)' 2>/dev/null | grep -m 1 -E '/debian/?$' || true)
cat >"$work/list.sources" <<END
Types: deb
URIs: ${mirror:-http://deb.debian.org/debian}
Suites: $suite
Components: main contrib non-free
Signed-By: $keyring
END
options=(-q -o "Dir::Etc::SourceList=$work/list.sources" -o "Dir::Etc::SourceParts=$work/parts"
    -o "Dir::State::Lists=$work/lists" -o "Dir::Cache=$work/cache" -o "APT::Sandbox::User=root"
    -o "Acquire::Retries=3")

say "$suite of ${mirror:-http://deb.debian.org/debian}"
apt-get "${options[@]}" update >&2
(cd "$work/debs" && apt-get "${options[@]}" download nsight-systems nsight-systems-target libssh-4 >&2)
mkdir -p "$(dirname "$folder")"
unpacked=$(mktemp -d "$folder.XXXXXX")
trap 'rm -rf "$work" "$unpacked"' EXIT
chmod 755 "$unpacked"
for package in "$work"/debs/*.deb; do
    dpkg-deb --extract "$package" "$unpacked"
done

# nsys looks for its importer beside itself, and its report scripts for their library beside them.
library=$unpacked/usr/lib
target=$library/x86_64-linux-gnu/nsight-systems/target-linux-x64
host=$library/nsight-systems/host-linux-x64
ln -sfn ../../nsight-systems/host-linux-x64 "$library/x86_64-linux-gnu/nsight-systems/host-linux-x64"
mkdir -p "$host/python/lib"
cp -r "$target/python/lib/." "$host/python/lib/"
rm -rf "$unpacked/usr/share/doc"
mv -T "$unpacked" "$folder" # replaces an empty folder only

if ! "$program" --version >&2; then
    say "$program does not start: remove $folder, then run this script again"
    exit 1
fi
