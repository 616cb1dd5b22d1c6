# SPDX-License-Identifier: Apache-2.0
# Finds Open MPI or MPICH for C++, without their retired C++ bindings: the target MPILibrary::MPILibrary,
# MPILibrary_VERSION, and MPILibrary_NAME, `Open MPI` or `MPICH`. MPILibrary_CXX says by which compiler wrapper.
#
# CMake's own FindMPI ends the configuration where the compiler wrapper is there and the headers are
# not, which is what Debian's openmpi-bin alone looks like. So the wrapper is only asked for folders.
find_program(MPILibrary_CXX mpicxx DOC "Compiler wrapper of Open MPI or MPICH")
mark_as_advanced(MPILibrary_CXX)

# mpi_library_folders(wrapper incdirs libdirs): sets the two variables to the folders that a wrapper says.
function(mpi_library_folders wrapper incdirs libdirs)
  set(${incdirs} "" PARENT_SCOPE)
  set(${libdirs} "" PARENT_SCOPE)
  execute_process(COMMAND "${wrapper}" --showme:incdirs RESULT_VARIABLE status
    OUTPUT_VARIABLE includes ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(status EQUAL 0)  # Open MPI
    execute_process(COMMAND "${wrapper}" --showme:libdirs
      OUTPUT_VARIABLE libraries ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
    separate_arguments(includes UNIX_COMMAND "${includes}")
    separate_arguments(libraries UNIX_COMMAND "${libraries}")
  else()
    execute_process(COMMAND "${wrapper}" -show RESULT_VARIABLE status
      OUTPUT_VARIABLE words ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
    if(NOT status EQUAL 0)
      return()
    endif()
    separate_arguments(words UNIX_COMMAND "${words}")
    set(includes "${words}")
    list(FILTER includes INCLUDE REGEX "^-I")
    list(TRANSFORM includes REPLACE "^-I" "")
    set(libraries "${words}")
    list(FILTER libraries INCLUDE REGEX "^-L")
    list(TRANSFORM libraries REPLACE "^-L" "")
  endif()
  set(${incdirs} "${includes}" PARENT_SCOPE)
  set(${libdirs} "${libraries}" PARENT_SCOPE)
endfunction()

set(mpi_library_incdirs "")
set(mpi_library_libdirs "")
if(MPILibrary_CXX)
  mpi_library_folders("${MPILibrary_CXX}" mpi_library_incdirs mpi_library_libdirs)
endif()
find_path(MPILibrary_INCLUDE_DIR mpi.h PATHS ${mpi_library_incdirs} NO_DEFAULT_PATH)

# In a folder that both share, libmpi is that of Open MPI; MPICH alone has both names.
set(mpi_library_names mpi)
if(MPILibrary_INCLUDE_DIR)
  file(STRINGS "${MPILibrary_INCLUDE_DIR}/mpi.h" mpi_library_lines
    REGEX "^#define (OMPI_(MAJOR|MINOR|RELEASE)_VERSION|MPICH_VERSION) ")
  if(mpi_library_lines MATCHES "MPICH_VERSION +\"([0-9.]+)")
    set(MPILibrary_NAME MPICH)
    set(mpi_library_names mpich mpi)
    set(MPILibrary_VERSION "${CMAKE_MATCH_1}")
  else()
    set(MPILibrary_NAME "Open MPI")
    string(REGEX REPLACE "[^;]*_VERSION +([0-9]+)[^;]*" "\\1" MPILibrary_VERSION "${mpi_library_lines}")
    string(REPLACE ";" "." MPILibrary_VERSION "${MPILibrary_VERSION}")
  endif()
endif()
find_library(MPILibrary_LIBRARY NAMES ${mpi_library_names} PATHS ${mpi_library_libdirs} NO_DEFAULT_PATH)
mark_as_advanced(MPILibrary_INCLUDE_DIR MPILibrary_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(MPILibrary
  REQUIRED_VARS MPILibrary_LIBRARY MPILibrary_INCLUDE_DIR
  VERSION_VAR MPILibrary_VERSION
  REASON_FAILURE_MESSAGE "install its headers (Debian and Ubuntu: libopenmpi-dev or libmpich-dev)")

if(MPILibrary_FOUND AND NOT TARGET MPILibrary::MPILibrary)
  add_library(MPILibrary::MPILibrary UNKNOWN IMPORTED)
  set_target_properties(MPILibrary::MPILibrary PROPERTIES
    IMPORTED_LOCATION "${MPILibrary_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${MPILibrary_INCLUDE_DIR}"
    INTERFACE_COMPILE_DEFINITIONS "OMPI_SKIP_MPICXX;MPICH_SKIP_MPICXX")
endif()
