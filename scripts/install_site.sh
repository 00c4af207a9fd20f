#!/usr/bin/env bash
# Install aorta once for all users of a site, below PREFIX, with module files for Lmod and Tcl modules.
#   usage: scripts/install_site.sh PREFIX [wheelhouse]     PYTHON=python3.12 chooses the interpreter
# With a wheelhouse (make wheelhouse) nothing is fetched. Afterwards nobody but the owner may write below PREFIX.
#   module use PREFIX/modulefiles && module load aorta
# PREFIX/etc/site.yaml, if you write it, holds the site's defaults (docs/centres.md).
set -euo pipefail
cd "$(dirname "$0")/.."
if [ $# -lt 1 ]; then
    sed -n '2,6s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
prefix=$(realpath -m -- "$1")
wheelhouse=${2:+$(realpath -- "$2")}
case $prefix in
    / | *[!A-Za-z0-9/._+-]*)
        echo "install: PREFIX $prefix must be a folder of letters, digits and / . _ + -" >&2
        exit 2
        ;;
esac
python=${PYTHON:-python3}
umask 022
"$python" -m venv "$prefix"
if [ -n "$wheelhouse" ]; then
    "$prefix/bin/python" -m pip install --disable-pip-version-check --quiet --no-cache-dir --no-index --find-links "$wheelhouse" aorta
else
    "$prefix/bin/python" -m pip install --disable-pip-version-check --quiet --no-cache-dir -c constraints.txt .
fi
"$prefix/bin/python" -m compileall -q "$prefix/lib" || true # a package may hold files for other versions of Python
version=$("$prefix/bin/aorta" --version | sed 's/.* //')
# The module shows the aorta command alone: the Python of this environment must not hide the user's.
mkdir -p "$prefix/command" "$prefix/etc" "$prefix/modulefiles/aorta" "$prefix/scripts"
ln -sfn ../bin/aorta "$prefix/command/aorta"
cp scripts/slurm_epilog.sh "$prefix/scripts/"
cat >"$prefix/modulefiles/aorta/$version.lua" <<LUA
help([[aorta: why a PyTorch job does not scale, and what to change. Type: aorta --help]])
whatis("Name: aorta")
whatis("Version: $version")
prepend_path("PATH", "$prefix/command")
if isFile("$prefix/etc/site.yaml") then
  setenv("AORTA_SITE_CONFIG", "$prefix/etc/site.yaml")
end
LUA
cat >"$prefix/modulefiles/aorta/$version" <<TCL
#%Module1.0
proc ModulesHelp { } { puts stderr "aorta: why a PyTorch job does not scale, and what to change. Type: aorta --help" }
module-whatis "aorta $version"
prepend-path PATH $prefix/command
if { [file exists $prefix/etc/site.yaml] } {
    setenv AORTA_SITE_CONFIG $prefix/etc/site.yaml
}
TCL
chmod -R a+rX,go-w "$prefix"
echo "install: aorta $version in $prefix; module use $prefix/modulefiles && module load aorta"
