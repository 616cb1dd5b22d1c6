# SPDX-License-Identifier: Apache-2.0
# Finds NCCL, which has no package file of its own: the target NCCL::NCCL, NCCL_VERSION.
#
# Searched: NCCL_ROOT (CMake or environment variable; the folder that holds include/ and lib/, or
# the folder nvidia/nccl of the Python package), the CUDA toolkit, and the system's folders.
# The Python package has no libnccl.so but only libnccl.so.2, so both names are looked for.
set(nccl_hints "")
foreach(nccl_root IN ITEMS "${CUDAToolkit_ROOT}" "$ENV{CUDA_HOME}" "${CUDAToolkit_TARGET_DIR}")
  if(nccl_root)
    list(APPEND nccl_hints "${nccl_root}")
  endif()
endforeach()
find_program(NCCL_NVCC nvcc)
mark_as_advanced(NCCL_NVCC)
if(NCCL_NVCC)
  file(REAL_PATH "${NCCL_NVCC}" nccl_nvcc)
  cmake_path(GET nccl_nvcc PARENT_PATH nccl_root)
  cmake_path(GET nccl_root PARENT_PATH nccl_root)
  list(APPEND nccl_hints "${nccl_root}")
endif()

find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${nccl_hints} PATH_SUFFIXES include nvidia/nccl/include)
find_library(NCCL_LIBRARY NAMES nccl libnccl.so.2 NAMES_PER_DIR HINTS ${nccl_hints}
  PATH_SUFFIXES lib lib64 nvidia/nccl/lib)
mark_as_advanced(NCCL_INCLUDE_DIR NCCL_LIBRARY)

if(NCCL_INCLUDE_DIR)
  file(STRINGS "${NCCL_INCLUDE_DIR}/nccl.h" nccl_lines REGEX "^#define NCCL_(MAJOR|MINOR|PATCH) ")
  string(REGEX REPLACE "[^;]*_(MAJOR|MINOR|PATCH) +([0-9]+)[^;]*" "\\2" NCCL_VERSION "${nccl_lines}")
  string(REPLACE ";" "." NCCL_VERSION "${NCCL_VERSION}")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(NCCL
  REQUIRED_VARS NCCL_LIBRARY NCCL_INCLUDE_DIR
  VERSION_VAR NCCL_VERSION
  REASON_FAILURE_MESSAGE "set NCCL_ROOT to the folder with include/nccl.h and lib/libnccl.so")

if(NCCL_FOUND AND NOT TARGET NCCL::NCCL)
  add_library(NCCL::NCCL UNKNOWN IMPORTED)
  set_target_properties(NCCL::NCCL PROPERTIES
    IMPORTED_LOCATION "${NCCL_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${NCCL_INCLUDE_DIR}")
endif()
