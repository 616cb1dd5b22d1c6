# SPDX-License-Identifier: Apache-2.0
# An overlay port: it installs the repository that it lies in.
get_filename_component(SOURCE_PATH "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
set(VCPKG_BUILD_TYPE release)  # headers only

vcpkg_check_features(OUT_FEATURE_OPTIONS features FEATURES asio ZBPP_ASIO json ZBPP_JSON)
vcpkg_cmake_configure(
  SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS
    -DZBPP_BUILD_TESTS=OFF
    -DZBPP_BUILD_EXAMPLES=OFF
    -DZBPP_BUILD_BENCH=OFF
    -DZBPP_BUILD_TOOLS=OFF
    -DZBPP_INSTALL=ON
    -DZBPP_CUDA=OFF
    -DZBPP_NCCL=OFF
    -DZBPP_MPI=OFF
    -DZBPP_TORCH=OFF
    ${features})
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH lib/cmake/zbpp)
vcpkg_fixup_pkgconfig()
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
