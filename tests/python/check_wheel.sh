#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds the wheel without a network, unoptimized to save time, and plans with what it holds, from a
# folder that has nothing of the repository. Fails when the build leaves anything beside the sources.
# usage: check_wheel.sh PYTHON SOURCE SCRATCH COMPILER VERSION
set -eu
python=$1
source=$2
scratch=$3
compiler=$4
version=$5

rm -rf "$scratch"
mkdir -p "$scratch"
(cd "$source/python" && find . -name __pycache__ -prune -o -print | sort) >"$scratch/before"
CMAKE_ARGS="-DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG= -DCMAKE_CXX_COMPILER=$compiler" \
  ZBPP_WHEEL_BUILD=$scratch/build \
  "$python" -m pip wheel --quiet --no-build-isolation --no-deps --no-index --disable-pip-version-check \
  --wheel-dir "$scratch" "$source/python"
(cd "$source/python" && find . -name __pycache__ -prune -o -print | sort) >"$scratch/after"
diff "$scratch/before" "$scratch/after"

wheel=$(echo "$scratch/zbpp-$version"-py3-none-*.whl)
mkdir "$scratch/site"
cd "$scratch/site"
"$python" -m zipfile -e "$wheel" .
unset ZBPP_C_LIBRARY PYTHONPATH
"$python" - "$version" <<'END'
import pathlib
import sys

import zbpp

assert pathlib.Path(zbpp.__file__).parent == pathlib.Path.cwd() / "zbpp", zbpp.__file__
assert zbpp.__version__ == sys.argv[1], zbpp.__version__
problem = zbpp.Problem(ranks=4, microbatches=8, stages=[zbpp.Stage(10, 10, 10)])
assert zbpp.plan(problem, "zb_h1").cost == 270
print(f"zbpp {zbpp.__version__} plans from its wheel")
END
