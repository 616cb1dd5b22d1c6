# SPDX-License-Identifier: Apache-2.0
# Installs the build in BINARY into the empty folder PREFIX.
file(REMOVE_RECURSE "${PREFIX}")
execute_process(COMMAND "${CMAKE_COMMAND}" --install "${BINARY}" --prefix "${PREFIX}"
  COMMAND_ERROR_IS_FATAL ANY)
