#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts the test cases that notice seeded harm to the library.

    tests/mutations/run.py LIST SCRATCH [NUMBER...]

Copies the tree to SCRATCH, puts all lines of harm of LIST in, each behind a switch, and builds the test programs there
once. Runs them without harm, and with each those that look there, but for cases that take seconds; where the list has
tags, the cases of these tags. Prints how many test cases fail; a program that crashes or takes longer than ten minutes
counts as one.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

SWITCH = """
#include <cstdlib>
namespace zbpp {
inline int seeded_harm() noexcept {
  static int const number = std::getenv("ZBPP_HARM") == nullptr ? 0 : std::atoi(std::getenv("ZBPP_HARM"));
  return number;
}
}  // namespace zbpp
"""
OPTIONS = ["-DCMAKE_CXX_FLAGS_DEBUG=", "-DZBPP_PACKAGE_TESTS=OFF", "-DZBPP_CUDA_HOST_TEST=OFF",
           "-DZBPP_BUILD_EXAMPLES=OFF", "-DZBPP_PYTHON=OFF", "-DZBPP_TORCH=OFF"]


def read_list(path):
    """Gives number, sentence, programs, file, old line and new lines of each block."""
    for block in re.split(r"\n\n+", path.read_text().split("\n\n", 1)[1].strip("\n")):
        head, programs, file, old, *new = block.split("\n")
        number, sentence = head.split(" ", 1)
        yield int(number), sentence, programs.split(), file, old, "\n".join(new)


def put_in(tree, harms):
    """Puts all harm into a tree."""
    with open(tree / "include/zbpp/config.hpp", "a") as config:
        config.write(SWITCH)
    for number, _, _, file, old, new in harms:
        path = tree / "include/zbpp" / file
        text = path.read_text()
        if text.count("\n" + old + "\n") != 1:
            sys.exit(f"{file} has the old line of {number} {text.count(old)} times")
        switched = new.replace("HARM", f"(::zbpp::seeded_harm() == {number})")
        path.write_text(text.replace("\n" + old + "\n", "\n" + switched + "\n"))


def failures(program, number, cases):
    """Gives how many of some cases of a program fail."""
    try:
        run = subprocess.run([program, "-r", "compact", cases], capture_output=True, text=True, errors="replace",
                             timeout=600, env={**os.environ, "ZBPP_HARM": str(number)})
    except subprocess.TimeoutExpired:
        return 1, "slow"
    found = re.search(r"Failed (\d+) test case|[Ff]ailed (?:both|all) (\d+) test case", run.stdout)
    if found:
        return int(found[1] or found[2]), ""
    return (0, "") if run.returncode == 0 else (1, "crash")


def main():
    """Does what the module says."""
    harms, scratch = list(read_list(pathlib.Path(sys.argv[1]))), pathlib.Path(sys.argv[2])
    chosen = {int(word) for word in sys.argv[3:]}
    every = sorted({name for _, _, programs, *_ in harms for name in programs if name[0] != "["})
    tree = scratch / "tree"
    root = pathlib.Path(__file__).resolve().parents[2]
    shutil.rmtree(tree, ignore_errors=True)
    shutil.copytree(root, tree, symlinks=True, ignore=shutil.ignore_patterns("build", ".git"))
    put_in(tree, harms)
    launcher = ["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
    subprocess.run(["cmake", "--preset", "dev", "-B", scratch / "build", *OPTIONS, *launcher], cwd=tree, check=True,
                   stdout=subprocess.DEVNULL)
    subprocess.run(["ninja", "-j2", "-C", scratch / "build", *(f"tests_{name}" for name in every)], check=True,
                   stdout=subprocess.DEVNULL)

    def count(harm):
        number, sentence, programs, *_ = harm
        tags = [name for name in programs if name.startswith("[")]
        cases = ",".join(tag + "~[fuzz]" for tag in tags) or "~[long]~[fuzz]"
        programs = [name for name in programs if name not in tags]
        counts = [failures(scratch / f"build/tests/tests_{name}", number, cases) for name in programs]
        parts = ", ".join(f"{name} {found}{' ' + how if how else ''}"
                          for name, (found, how) in zip(programs, counts))
        return f"{number:2} {sum(found for found, _ in counts):3}  {sentence}  [{parts}]"

    wanted = [(0, "Without harm.", every), *(harm for harm in harms if not chosen or harm[0] in chosen)]
    with ThreadPoolExecutor(4) as pool:  # most tests wait most of their time
        for line in pool.map(count, wanted):
            print(line, flush=True)


main()
