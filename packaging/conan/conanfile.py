# SPDX-License-Identifier: Apache-2.0
"""Packages the repository that this recipe lies in: conan create packaging/conan"""

import os
import re

from conan import ConanFile
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain
from conan.tools.files import copy, load


class Zbpp(ConanFile):
    name = "zbpp"
    description = "Zero-bubble pipeline parallelism for C++ trainers"
    license = "Apache-2.0"
    package_type = "header-library"
    settings = "os", "compiler", "build_type", "arch"
    options = {"with_asio": [True, False], "with_json": [True, False]}
    default_options = {"with_asio": False, "with_json": False}
    no_copy_source = True

    @property
    def _repository(self):
        return os.path.join(self.recipe_folder, "..", "..")

    def set_version(self):
        header = load(self, os.path.join(self._repository, "include", "zbpp", "config.hpp"))
        parts = re.findall(r"#define ZBPP_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", header)
        self.version = ".".join(parts)

    def export_sources(self):
        for pattern in ("CMakeLists.txt", "LICENSE", "cmake/*", "include/*"):
            copy(self, pattern, self._repository, self.export_sources_folder)

    def requirements(self):
        if self.options.with_asio:
            self.requires("boost/[>=1.81 <2]")
            self.requires("openssl/[>=3 <4]")
        if self.options.with_json:
            self.requires("nlohmann_json/[>=3.9 <4]")

    def validate(self):
        check_min_cppstd(self, 20)

    def generate(self):
        CMakeDeps(self).generate()
        toolchain = CMakeToolchain(self)
        for kind in ("TESTS", "EXAMPLES", "BENCH", "TOOLS"):
            toolchain.cache_variables[f"ZBPP_BUILD_{kind}"] = "OFF"
        toolchain.cache_variables["ZBPP_ASIO"] = "ON" if self.options.with_asio else "OFF"
        toolchain.cache_variables["ZBPP_JSON"] = "ON" if self.options.with_json else "OFF"
        toolchain.cache_variables["ZBPP_CUDA"] = "OFF"
        toolchain.cache_variables["ZBPP_NCCL"] = "OFF"
        toolchain.cache_variables["ZBPP_MPI"] = "OFF"
        toolchain.cache_variables["ZBPP_TORCH"] = "OFF"
        toolchain.generate()

    def build(self):
        CMake(self).configure()

    def package(self):
        CMake(self).install()

    def package_id(self):
        self.info.settings.clear()  # headers only

    def package_info(self):
        # The package's own CMake files, so that the targets are those of any other installation.
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = [os.path.join("lib", "cmake", "zbpp")]
        self.cpp_info.bindirs = []
        self.cpp_info.libdirs = []
        self.cpp_info.system_libs = ["pthread"]
