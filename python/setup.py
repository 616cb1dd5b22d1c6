# SPDX-License-Identifier: Apache-2.0
"""Builds libzbpp_c with CMake and puts it into the wheel.

CMAKE_ARGS has more arguments for CMake, and ZBPP_WHEEL_BUILD the folder to build in, else build/wheel
of the repository.
"""

import os
import re
import shlex
import subprocess
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # setuptools before 70.1
    from wheel.bdist_wheel import bdist_wheel

ROOT = Path(__file__).resolve().parent.parent
BUILD = Path(os.environ.get("ZBPP_WHEEL_BUILD") or ROOT / "build" / "wheel").resolve()


def version() -> str:
    header = (ROOT / "include/zbpp/config.hpp").read_text()
    parts = re.findall(r"^#define ZBPP_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)$", header, re.MULTILINE)
    return ".".join(parts)


class BuildWithLibrary(build_py):
    """Adds the library to the package."""

    def run(self) -> None:
        super().run()
        options = {
            "CMAKE_BUILD_TYPE": "Release",
            "ZBPP_PYTHON": "ON",
            "ZBPP_JSON": "ON",
            "ZBPP_ASIO": "OFF",
            "ZBPP_CUDA": "OFF",
            "ZBPP_NCCL": "OFF",
            "ZBPP_BUILD_TESTS": "OFF",
            "ZBPP_BUILD_EXAMPLES": "OFF",
            "ZBPP_BUILD_BENCH": "OFF",
            "ZBPP_BUILD_TOOLS": "OFF",
            "ZBPP_INSTALL": "OFF",
        }
        given = [f"-D{name}={value}" for name, value in options.items()]
        given += shlex.split(os.environ.get("CMAKE_ARGS", ""))
        subprocess.run(["cmake", "-S", ROOT, "-B", BUILD / "cmake", *given], check=True)
        subprocess.run(["cmake", "--build", BUILD / "cmake", "--target", "zbpp_c"], check=True)
        library = BUILD / "cmake" / "python" / "libzbpp_c.so"
        self.copy_file(str(library), str(Path(self.build_lib) / "zbpp" / library.name))


class PlatformWheel(bdist_wheel):
    """Is for any Python of one platform, because ctypes calls the library."""

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


class PlatformDistribution(Distribution):
    """Is not for all platforms."""

    def has_ext_modules(self) -> bool:
        return True


BUILD.mkdir(parents=True, exist_ok=True)
setup(
    version=version(),
    distclass=PlatformDistribution,
    cmdclass={"build_py": BuildWithLibrary, "bdist_wheel": PlatformWheel},
    # Nothing is written beside the sources.
    options={"build": {"build_base": str(BUILD)}, "egg_info": {"egg_base": str(BUILD)}},
)
