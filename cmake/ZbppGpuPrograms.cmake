# SPDX-License-Identifier: Apache-2.0
# What `run gpu` builds and runs: for each program a file with its name in gpu_programs/ of the build,
# or in gpu_models/ where it runs on the tests' model of CUDA. The lines are its target and its path from
# there, so that a build can be taken to another machine.

# zbpp_gpu_programs(name...): programs for GPUs.
function(zbpp_gpu_programs)
  foreach(name IN LISTS ARGN)
    zbpp_list_gpu_program(gpu_programs ${name} ${name})
  endforeach()
endfunction()

# zbpp_gpu_model(name target): a program for GPUs on the model of CUDA.
function(zbpp_gpu_model name target)
  zbpp_list_gpu_program(gpu_models ${name} ${target})
endfunction()

function(zbpp_list_gpu_program list name target)
  if(NOT TARGET ${list})
    add_custom_target(${list})
  endif()
  add_dependencies(${list} ${target})
  file(GENERATE OUTPUT "${PROJECT_BINARY_DIR}/${list}/${name}"
    CONTENT "${target}\n$<PATH:RELATIVE_PATH,$<TARGET_FILE:${target}>,${PROJECT_BINARY_DIR}>\n")
endfunction()
