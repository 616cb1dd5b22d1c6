# SPDX-License-Identifier: Apache-2.0
include(ZbppGpuPrograms)

# zbpp_enable_cuda(why_not): lets this folder and those below it compile .cu files, by nvcc with the
# C++ compiler behind it; or sets the variable of that name to the reason why it cannot. A macro,
# since a language that a function enables is gone with it.
macro(zbpp_enable_cuda why_not)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    set(${why_not} "the compiler is ${CMAKE_CXX_COMPILER_ID}, not g++")
  else()
    if(NOT CMAKE_CUDA_HOST_COMPILER)
      set(CMAKE_CUDA_HOST_COMPILER "${CMAKE_CXX_COMPILER}")
    endif()
    if(NOT CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES 90)
    endif()
    # That of zbpp::cuda: two runtimes in one program would not know each other's streams.
    set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)
    include(CheckLanguage)
    check_language(CUDA)
    if(CMAKE_CUDA_COMPILER)
      enable_language(CUDA)
    else()
      set(${why_not} "no working nvcc was found")
    endif()
  endif()
endmacro()
