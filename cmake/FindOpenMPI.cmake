# SPDX-License-Identifier: Apache-2.0
# Finds Open MPI for C++, without its retired C++ bindings: the target OpenMPI::OpenMPI,
# OpenMPI_VERSION.
#
# CMake's own FindMPI ends the configuration where the compiler wrapper is there and the headers are
# not, which is what Debian's openmpi-bin alone looks like. So the wrapper is only asked for folders.
find_program(OpenMPI_CXX mpicxx DOC "Compiler wrapper of Open MPI")
mark_as_advanced(OpenMPI_CXX)
set(openmpi_incdirs "")
set(openmpi_libdirs "")
if(OpenMPI_CXX)
  foreach(dirs IN ITEMS incdirs libdirs)
    execute_process(COMMAND "${OpenMPI_CXX}" --showme:${dirs} RESULT_VARIABLE status
      OUTPUT_VARIABLE openmpi_${dirs} ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
    if(NOT status EQUAL 0)  # another MPI
      set(openmpi_${dirs} "")
    endif()
    separate_arguments(openmpi_${dirs} UNIX_COMMAND "${openmpi_${dirs}}")
  endforeach()
endif()
find_path(OpenMPI_INCLUDE_DIR mpi.h PATHS ${openmpi_incdirs} NO_DEFAULT_PATH)
find_library(OpenMPI_LIBRARY mpi PATHS ${openmpi_libdirs} NO_DEFAULT_PATH)
mark_as_advanced(OpenMPI_INCLUDE_DIR OpenMPI_LIBRARY)

if(OpenMPI_INCLUDE_DIR)
  file(STRINGS "${OpenMPI_INCLUDE_DIR}/mpi.h" openmpi_lines
    REGEX "^#define OMPI_(MAJOR|MINOR|RELEASE)_VERSION ")
  string(REGEX REPLACE "[^;]*_VERSION +([0-9]+)[^;]*" "\\1" OpenMPI_VERSION "${openmpi_lines}")
  string(REPLACE ";" "." OpenMPI_VERSION "${OpenMPI_VERSION}")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(OpenMPI
  REQUIRED_VARS OpenMPI_LIBRARY OpenMPI_INCLUDE_DIR
  VERSION_VAR OpenMPI_VERSION
  REASON_FAILURE_MESSAGE "install its headers (Debian and Ubuntu: libopenmpi-dev)")

if(OpenMPI_FOUND AND NOT TARGET OpenMPI::OpenMPI)
  add_library(OpenMPI::OpenMPI UNKNOWN IMPORTED)
  set_target_properties(OpenMPI::OpenMPI PROPERTIES
    IMPORTED_LOCATION "${OpenMPI_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${OpenMPI_INCLUDE_DIR}"
    INTERFACE_COMPILE_DEFINITIONS OMPI_SKIP_MPICXX)
endif()
