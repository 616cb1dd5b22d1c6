# SPDX-License-Identifier: Apache-2.0
# What configuring zbpp says where the package of LibTorch says much: nothing while all is well, and all
# of it where that is needed. Packages of a few lines stand in for LibTorch's.
#
#   cmake -DZBPP=FOLDER -DSCRATCH=FOLDER -DGENERATOR=NAME -DMAKE_PROGRAM=PATH -DCOMPILER=PATH -P THIS

# configure(name ZBPP_TORCH package): sets `status` and `out`.
function(configure name option package)
  set(folder "${SCRATCH}/${name}")
  file(REMOVE_RECURSE "${folder}")
  file(WRITE "${folder}/torch/TorchConfig.cmake" "${package}")
  execute_process(
    COMMAND "${CMAKE_COMMAND}" -S "${ZBPP}" -B "${folder}/build" -G "${GENERATOR}"
      "-DCMAKE_MAKE_PROGRAM=${MAKE_PROGRAM}" "-DCMAKE_CXX_COMPILER=${COMPILER}"
      -DZBPP_BUILD_TESTS=OFF -DZBPP_BUILD_EXAMPLES=OFF -DZBPP_BUILD_BENCH=OFF -DZBPP_BUILD_TOOLS=OFF
      -DZBPP_ASIO=OFF -DZBPP_CUDA=OFF -DZBPP_NCCL=OFF "-DZBPP_TORCH=${option}"
      "-DTorch_DIR=${folder}/torch"
    RESULT_VARIABLE status OUTPUT_VARIABLE out ERROR_VARIABLE out)
  set(status "${status}" PARENT_SCOPE)
  set(out "${out}" PARENT_SCOPE)
endfunction()

set(warnings "message(STATUS [[noise of glog]])\nmessage(WARNING [[noise of glog]])\n"
  "message(AUTHOR_WARNING [[noise of glog]])\n")
string(CONCAT warnings ${warnings})
set(targets "if(NOT TARGET torch)\n  add_library(torch INTERFACE IMPORTED)\n"
  "  add_library(torch_library INTERFACE IMPORTED)\nendif()\n"
  "set(TORCH_LIBRARY /usr/lib/libtorch.so)\nset(TORCH_INCLUDE_DIRS /usr/include)\n")
string(CONCAT targets ${targets})

foreach(option IN ITEMS AUTO ON)
  configure(good "${option}" "${warnings}${targets}")
  string(FIND "${out}" "noise of glog" noise)
  if(NOT status EQUAL 0 OR NOT noise EQUAL -1)
    message(FATAL_ERROR "ZBPP_TORCH=${option}: status ${status}, wanted 0 and no noise:\n${out}")
  endif()
endforeach()

set(missing "${warnings}set(Torch_FOUND FALSE)\n")
configure(missing_auto AUTO "${missing}")
string(FIND "${out}" "noise of glog" noise)
if(NOT status EQUAL 0 OR NOT noise EQUAL -1 OR NOT out MATCHES "without component torch")
  message(FATAL_ERROR "not found, not asked for: status ${status}:\n${out}")
endif()
configure(missing_on ON "${missing}")
string(FIND "${out}" "noise of glog" noise)
if(status EQUAL 0 OR noise EQUAL -1 OR NOT out MATCHES "LibTorch was not found")
  message(FATAL_ERROR "not found, asked for: status ${status}, wanted all that LibTorch said:\n${out}")
endif()

configure(broken AUTO "message(FATAL_ERROR [[glog is broken]])\n")
if(status EQUAL 0 OR NOT out MATCHES "glog is broken")
  message(FATAL_ERROR "an error of LibTorch's package is not shown: status ${status}:\n${out}")
endif()
