# SPDX-License-Identifier: Apache-2.0
# Components of zbpp: a target, its headers, what it needs, and how it is installed.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

set(ZBPP_PACKAGE_DIR "${CMAKE_INSTALL_LIBDIR}/cmake/zbpp")
define_property(GLOBAL PROPERTY ZBPP_COMPONENTS BRIEF_DOCS "Components that are built")
define_property(GLOBAL PROPERTY ZBPP_LISTED_HEADERS BRIEF_DOCS "Headers of all listed components")

# zbpp_component(name HEADERS header... [LINK target...] [PACKAGES "package version"...]
#   [PC_REQUIRES modules] [PC_CFLAGS flags] [PC_LIBS flags] [PC_VARIABLES name=value...])
#
# Makes the target zbpp::name (for `core`: zbpp::zbpp) with the headers below include/zbpp.
# LINK may name other components (zbpp::cuda); find_package(zbpp COMPONENTS name) then brings those
# as well. PACKAGES are what find_package has to find, here and at a user's. PC_REQUIRES and the others
# say the same to pkg-config.
function(zbpp_component name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "PC_REQUIRES;PC_CFLAGS;PC_LIBS"
    "HEADERS;LINK;PACKAGES;PC_VARIABLES")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "zbpp_component(${name}): unknown arguments: ${arg_UNPARSED_ARGUMENTS}")
  endif()

  if(name STREQUAL "core")
    set(target zbpp)
    set(export_name zbpp)
  else()
    set(target zbpp_${name})
    set(export_name ${name})
  endif()

  set(level "${CMAKE_MESSAGE_LOG_LEVEL}")
  foreach(package IN LISTS arg_PACKAGES)
    separate_arguments(package)
    set(CMAKE_MESSAGE_LOG_LEVEL "${level}")
    if(package MATCHES "^Torch")  # it was found before, and says much
      set(CMAKE_MESSAGE_LOG_LEVEL ERROR)
    endif()
    find_package(${package} REQUIRED)
  endforeach()
  set(CMAKE_MESSAGE_LOG_LEVEL "${level}")

  add_library(${target} INTERFACE)
  add_library(zbpp::${export_name} ALIAS ${target})
  list(TRANSFORM arg_HEADERS PREPEND "${PROJECT_SOURCE_DIR}/include/zbpp/" OUTPUT_VARIABLE files)
  target_sources(${target} INTERFACE
    FILE_SET HEADERS BASE_DIRS "${PROJECT_SOURCE_DIR}/include" FILES ${files})
  target_link_libraries(${target} INTERFACE ${arg_LINK})
  set_target_properties(${target} PROPERTIES
    EXPORT_NAME ${export_name}
    VERIFY_INTERFACE_HEADER_SETS ${PROJECT_IS_TOP_LEVEL})

  if(name STREQUAL "core")
    # What every user needs. Without sibling calls a chain of resumed coroutines grows the stack in
    # builds without optimization. CMake before 3.26 does not know C++20 for nvcc, so the flag is
    # spelt out.
    target_compile_features(${target} INTERFACE cxx_std_20)
    target_compile_options(${target} INTERFACE
      "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:-foptimize-sibling-calls>"
      "$<$<COMPILE_LANG_AND_ID:CUDA,NVIDIA>:-std=c++20>"
      "$<$<COMPILE_LANG_AND_ID:CUDA,NVIDIA>:-Xcompiler=-foptimize-sibling-calls>")
  endif()

  set_property(GLOBAL APPEND PROPERTY ZBPP_COMPONENTS ${name})
  set_property(GLOBAL APPEND PROPERTY ZBPP_LISTED_HEADERS ${arg_HEADERS})

  if(ZBPP_INSTALL)
    set(requires "${arg_LINK}")
    list(FILTER requires INCLUDE REGEX "^zbpp::")
    list(TRANSFORM requires REPLACE "^zbpp::zbpp$" "core")
    list(TRANSFORM requires REPLACE "^zbpp::" "")
    file(WRITE "${PROJECT_BINARY_DIR}/cmake/zbpp-${name}.cmake"
      "set(zbpp_requires \"${requires}\")\nset(zbpp_packages \"${arg_PACKAGES}\")\n")
    install(FILES "${PROJECT_BINARY_DIR}/cmake/zbpp-${name}.cmake"
      DESTINATION "${ZBPP_PACKAGE_DIR}" COMPONENT zbpp)
    install(TARGETS ${target} EXPORT zbpp-${name}
      FILE_SET HEADERS DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" COMPONENT zbpp)
    install(EXPORT zbpp-${name} FILE zbpp-${name}-targets.cmake NAMESPACE zbpp::
      DESTINATION "${ZBPP_PACKAGE_DIR}" COMPONENT zbpp)
    zbpp_install_pkg_config()
  endif()
  zbpp_compiled_component(${name} ${export_name} LINK ${arg_LINK})
endfunction()

# zbpp_compiled_name(variable name): the name of a component's compiled form.
function(zbpp_compiled_name variable name)
  if(name MATCHES "^(core|zbpp)$")
    set(${variable} compiled PARENT_SCOPE)
  else()
    set(${variable} ${name}_compiled PARENT_SCOPE)
  endif()
endfunction()

# zbpp_link(target [PUBLIC] name...): links components to our own tests, examples and benchmarks, with
# ZBPP_COMPILED in their compiled form, which saves most of the time that the headers take.
function(zbpp_link target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "PUBLIC" "" "")
  set(scope PRIVATE)
  if(arg_PUBLIC)
    set(scope PUBLIC)
  endif()
  foreach(name IN LISTS arg_UNPARSED_ARGUMENTS)
    if(ZBPP_COMPILED)
      zbpp_compiled_name(name ${name})
    elseif(name STREQUAL "core")
      set(name zbpp)
    endif()
    target_link_libraries(${target} ${scope} zbpp::${name})
  endforeach()
endfunction()

# zbpp_compiled_sources(variable folder): the sources of include/zbpp/<folder>/impl/src.hpp, one for each of its
# paragraphs, so that all processors compile, and none takes long or much memory.
function(zbpp_compiled_sources variable folder)
  set(list "${PROJECT_SOURCE_DIR}/include/zbpp/${folder}/impl/src.hpp")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${list}")
  file(READ "${list}" paragraphs)
  string(REPLACE ";" "<semicolon>" paragraphs "${paragraphs}")
  string(REPLACE "\n\n" ";" paragraphs "${paragraphs}")
  list(FILTER paragraphs INCLUDE REGEX "#include")
  set(sources "")
  set(number "")
  foreach(paragraph IN LISTS paragraphs)
    string(REPLACE "<semicolon>" ";" paragraph "${paragraph}")
    set(source "${PROJECT_BINARY_DIR}/compiled/zbpp_${folder}${number}.cpp")
    file(CONFIGURE OUTPUT "${source}" CONTENT "${paragraph}\n" @ONLY)
    list(APPEND sources "${source}")
    list(LENGTH sources number)
  endforeach()
  set(${variable} ${sources} PARENT_SCOPE)
endfunction()

# zbpp_compiled_library(compiled export_name folder...): the static library zbpp_<compiled> of what these folders
# of include/zbpp compile; it links zbpp::<export_name>.
function(zbpp_compiled_library compiled export_name)
  set(all "")
  foreach(folder IN LISTS ARGN)
    zbpp_compiled_sources(sources ${folder})
    list(APPEND all ${sources})
  endforeach()
  set(exclude EXCLUDE_FROM_ALL)
  if(ZBPP_COMPILED)
    set(exclude "")
  endif()
  add_library(zbpp_${compiled} STATIC ${exclude} ${all})
  target_link_libraries(zbpp_${compiled} PUBLIC zbpp::${export_name})
  # The sanitizers and warnings of our own tests, where there are any: code that is compiled in two
  # ways and linked together would break the rule of one definition.
  target_link_libraries(zbpp_${compiled} PRIVATE
    $<BUILD_INTERFACE:$<TARGET_NAME_IF_EXISTS:zbpp_strict>>)
  target_compile_definitions(zbpp_${compiled} PUBLIC ZBPP_SEPARATE_COMPILATION)
  target_compile_options(zbpp_${compiled} PRIVATE ${ZBPP_COMPILED_OPTIONS})
  if(PROJECT_IS_TOP_LEVEL)
    if(NOT TARGET compiled_form)
      add_custom_target(compiled_form)  # builds all of them
    endif()
    add_dependencies(compiled_form zbpp_${compiled})
  endif()
  # Archives are made in any order.
  set_target_properties(zbpp_${compiled} PROPERTIES
    POSITION_INDEPENDENT_CODE ON OPTIMIZE_DEPENDENCIES ON)
endfunction()

# zbpp_compiled_component(name export_name LINK target...)
#
# Makes zbpp::<name>_compiled (for `core`: zbpp::compiled), the compiled form of a component: who links
# it compiles declarations only, of this component and of all that it needs. The functions in the
# component's impl/*.ipp are in a static library, which is built for whoever links it; with
# ZBPP_COMPILED also by default, and installed.
#
# The planner and the runtime of the core are libraries of their own, which no other part needs. zbpp::compiled
# brings both, but for a target whose property ZBPP_LEAVES_OUT lists `planner` or `runtime`: it is built without.
function(zbpp_compiled_component name export_name)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "" "LINK")
  zbpp_compiled_name(compiled ${name})

  set(needed "")
  foreach(target IN LISTS arg_LINK)
    if(target MATCHES "^zbpp::(.*)$")
      zbpp_compiled_name(needed_name ${CMAKE_MATCH_1})
      list(APPEND needed ${needed_name})
    endif()
  endforeach()
  list(TRANSFORM needed PREPEND "zbpp::" OUTPUT_VARIABLE needed_targets)

  set(folders ${name})
  set(parts ${compiled})
  if(name STREQUAL "core")
    file(STRINGS "${PROJECT_SOURCE_DIR}/include/zbpp/impl/src.hpp" folders REGEX "^#include <zbpp/.*/impl/src.hpp>$")
    list(TRANSFORM folders REPLACE "^.*/([a-z]+)/impl/src.hpp>$" "\\1")
    list(REMOVE_ITEM folders adapt planner runtime)
  endif()
  if(name STREQUAL "core" OR EXISTS "${PROJECT_SOURCE_DIR}/include/zbpp/${name}/impl/src.hpp")
    zbpp_compiled_library(${compiled} ${export_name} ${folders})
    target_link_libraries(zbpp_${compiled} PUBLIC ${needed_targets})
  else()  # templates and short functions alone
    add_library(zbpp_${compiled} INTERFACE)
    target_link_libraries(zbpp_${compiled} INTERFACE zbpp::${export_name} ${needed_targets})
  endif()
  if(name STREQUAL "core")
    foreach(room IN ITEMS planner runtime)
      set(rooms ${room})
      if(room STREQUAL "planner")
        list(APPEND rooms adapt)  # small, and for those who plan
      endif()
      zbpp_compiled_library(${room}_compiled ${export_name} ${rooms})
      target_link_libraries(zbpp_${room}_compiled PUBLIC zbpp::compiled)
      # Whose property that is, only the program says that is linked in the end.
      target_link_libraries(zbpp_compiled INTERFACE
        "$<$<NOT:$<IN_LIST:${room},$<TARGET_PROPERTY:ZBPP_LEAVES_OUT>>>:zbpp::${room}_compiled>")
      list(APPEND parts ${room}_compiled)
    endforeach()
  endif()
  foreach(part IN LISTS parts)
    add_library(zbpp::${part} ALIAS zbpp_${part})
    set_target_properties(zbpp_${part} PROPERTIES EXPORT_NAME ${part})
  endforeach()

  if(NOT ZBPP_INSTALL)
    return()
  elseif(NOT ZBPP_COMPILED)
    set_property(GLOBAL APPEND_STRING PROPERTY ZBPP_LEFT_OUT
      "set(zbpp_${compiled}_left_out [[ZBPP_COMPILED is OFF]])\n")
    return()
  endif()
  set_property(GLOBAL APPEND PROPERTY ZBPP_COMPONENTS ${compiled})
  set(requires ${name} ${needed})
  file(WRITE "${PROJECT_BINARY_DIR}/cmake/zbpp-${compiled}.cmake"
    "set(zbpp_requires \"${requires}\")\nset(zbpp_packages \"\")\n")
  install(FILES "${PROJECT_BINARY_DIR}/cmake/zbpp-${compiled}.cmake"
    DESTINATION "${ZBPP_PACKAGE_DIR}" COMPONENT zbpp)
  list(TRANSFORM parts PREPEND zbpp_)
  install(TARGETS ${parts} EXPORT zbpp-${compiled}
    ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT zbpp)
  install(EXPORT zbpp-${compiled} FILE zbpp-${compiled}-targets.cmake NAMESPACE zbpp::
    DESTINATION "${ZBPP_PACKAGE_DIR}" COMPONENT zbpp)
endfunction()

# Installs zbpp.pc or zbpp-<name>.pc, which finds the headers from where it lies itself. A macro, as
# it fills in the variables of zbpp_component.
macro(zbpp_install_pkg_config)
  set(zbpp_pc_name zbpp-${name})
  set(zbpp_pc_component ", component ${name}")
  if(name STREQUAL "core")
    set(zbpp_pc_name zbpp)
    set(zbpp_pc_component "")
  endif()
  set(zbpp_pc_dir "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
  set(zbpp_pc_prefix "${CMAKE_INSTALL_PREFIX}")
  if(NOT IS_ABSOLUTE "${zbpp_pc_dir}")
    file(RELATIVE_PATH zbpp_pc_prefix "/${zbpp_pc_dir}" "/")
    string(REGEX REPLACE "/$" "" zbpp_pc_prefix "\${pcfiledir}/${zbpp_pc_prefix}")
  endif()
  set(zbpp_pc_includedir "${CMAKE_INSTALL_INCLUDEDIR}")
  if(NOT IS_ABSOLUTE "${zbpp_pc_includedir}")
    string(PREPEND zbpp_pc_includedir "\${prefix}/")
  endif()
  list(JOIN arg_PC_VARIABLES "\n" zbpp_pc_variables)
  if(zbpp_pc_variables)
    string(APPEND zbpp_pc_variables "\n")
  endif()
  configure_file("${PROJECT_SOURCE_DIR}/cmake/zbpp.pc.in"
    "${PROJECT_BINARY_DIR}/cmake/${zbpp_pc_name}.pc" @ONLY)
  install(FILES "${PROJECT_BINARY_DIR}/cmake/${zbpp_pc_name}.pc"
    DESTINATION "${zbpp_pc_dir}" COMPONENT zbpp)
endmacro()

# zbpp_component_left_out(name HEADERS header... REASON text)
#
# Names a component that is not built here: its headers stay listed, and find_package tells a user
# who asks for it the reason.
function(zbpp_component_left_out name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "REASON" "HEADERS")
  message(STATUS "zbpp: without component ${name}: ${arg_REASON}")
  set_property(GLOBAL APPEND PROPERTY ZBPP_LISTED_HEADERS ${arg_HEADERS})
  set_property(GLOBAL APPEND_STRING PROPERTY ZBPP_LEFT_OUT
    "set(zbpp_${name}_left_out [[${arg_REASON}]])\n")
endfunction()

# Stops with a message that names the headers on disk that no list names, and the reverse.
function(zbpp_check_headers)
  set(root "${PROJECT_SOURCE_DIR}/include/zbpp")
  file(GLOB_RECURSE on_disk CONFIGURE_DEPENDS RELATIVE "${root}" "${root}/*.hpp" "${root}/*.ipp"
    "${root}/*.cuh")
  get_property(listed GLOBAL PROPERTY ZBPP_LISTED_HEADERS)
  set(problems "")
  foreach(header IN LISTS on_disk)
    if(NOT header IN_LIST listed)
      string(APPEND problems "\n  on disk but not listed: ${header}")
    endif()
  endforeach()
  foreach(header IN LISTS listed)
    if(NOT header IN_LIST on_disk)
      string(APPEND problems "\n  listed but not on disk: ${header}")
    endif()
  endforeach()
  if(problems)
    message(FATAL_ERROR "include/zbpp/headers.cmake does not fit the folder:${problems}")
  endif()
endfunction()

# Installs zbpp-config.cmake, its version file and the find modules it uses. Call it last.
function(zbpp_install_package)
  get_property(ZBPP_COMPONENTS GLOBAL PROPERTY ZBPP_COMPONENTS)
  get_property(ZBPP_LEFT_OUT GLOBAL PROPERTY ZBPP_LEFT_OUT)
  set(dir "${PROJECT_BINARY_DIR}/cmake")
  configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/zbpp-config.cmake.in"
    "${dir}/zbpp-config.cmake" INSTALL_DESTINATION "${ZBPP_PACKAGE_DIR}"
    NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
  set(any_machine ARCH_INDEPENDENT)  # headers are; libraries are not
  if(ZBPP_COMPILED)
    set(any_machine "")
  endif()
  write_basic_package_version_file("${dir}/zbpp-config-version.cmake"
    COMPATIBILITY SameMinorVersion ${any_machine})
  install(FILES "${dir}/zbpp-config.cmake" "${dir}/zbpp-config-version.cmake"
    "${PROJECT_SOURCE_DIR}/cmake/FindMPILibrary.cmake"
    "${PROJECT_SOURCE_DIR}/cmake/FindNCCL.cmake"
    DESTINATION "${ZBPP_PACKAGE_DIR}" COMPONENT zbpp)
  install(FILES "${PROJECT_SOURCE_DIR}/LICENSE"
    DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT zbpp)
endfunction()
