# The library `slip` (alias slip::slip) and the program `slip` (target slip_cli).

# If CUDA code cannot be compiled, removes it from a list of sources. Compares only the path below the source folder: the
# path of the checkout may contain "cuda", too.
function(slip_drop_cuda list)
  if(NOT SLIP_CUDA_FOUND)
    set(kept)
    foreach(path IN LISTS ${list})
      string(REPLACE "${PROJECT_SOURCE_DIR}/" "" below "${path}")
      if(NOT "/${below}" MATCHES "${SLIP_CUDA_PATH}")
        list(APPEND kept "${path}")
      endif()
    endforeach()
    set(${list} "${kept}" PARENT_SCOPE)
  endif()
endfunction()

set(slip_rooms base runtime topo backend watch transport store comm model flow)
set(slip_sources)
foreach(room IN LISTS slip_rooms)
  file(GLOB_RECURSE found CONFIGURE_DEPENDS
       "${PROJECT_SOURCE_DIR}/src/${room}/*.cpp" "${PROJECT_SOURCE_DIR}/src/${room}/*.cu")
  list(APPEND slip_sources ${found})
endforeach()
slip_drop_cuda(slip_sources)
file(GLOB_RECURSE slip_headers CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/include/slip/*.hpp")

find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)

# The private headers and flags of our own sources, tests and benchmarks. Not installed.
add_library(slip_internal INTERFACE)
target_include_directories(slip_internal INTERFACE "${PROJECT_SOURCE_DIR}/src")
target_link_libraries(slip_internal INTERFACE slip_warnings fmt::fmt nlohmann_json::nlohmann_json Threads::Threads)
target_compile_definitions(slip_internal INTERFACE SLIP_VERSION="${PROJECT_VERSION}")
if(SLIP_CUDA_FOUND)
  target_compile_definitions(slip_internal INTERFACE SLIP_HAS_CUDA=1)
  target_link_libraries(slip_internal INTERFACE CUDA::toolkit)
endif()

add_library(slip STATIC ${slip_sources})
add_library(slip::slip ALIAS slip)
target_compile_features(slip PUBLIC cxx_std_20)
target_sources(slip PUBLIC FILE_SET HEADERS BASE_DIRS "${PROJECT_SOURCE_DIR}/include" FILES ${slip_headers})
# Header-only libraries are needed in the build only. Libraries that a static library needs at link time are exported.
target_link_libraries(slip PRIVATE "$<BUILD_INTERFACE:slip_internal>" fmt::fmt Threads::Threads)
if(SLIP_CUDA_FOUND)
  target_link_libraries(slip PRIVATE CUDA::cudart_static ${CMAKE_DL_LIBS})
endif()

# src/topo uses hwloc to read the topology of the machine; SLIP_HAS_HWLOC is undefined without it.
set(SLIP_HWLOC_FOUND OFF)
if(slip_sources MATCHES "/src/topo/")
  find_package(hwloc QUIET MODULE)
  if(hwloc_FOUND)
    set(SLIP_HWLOC_FOUND ON)
    target_link_libraries(slip PRIVATE hwloc::hwloc)
    target_compile_definitions(slip PRIVATE SLIP_HAS_HWLOC=1)
  endif()
  message(STATUS "hwloc: ${SLIP_HWLOC_FOUND}")
endif()

# src/transport/net_ucx sends messages between hosts with UCX. Only its headers are needed here, because the library is
# loaded at run time when it is first used. SLIP_HAS_UCX is undefined without them.
option(SLIP_UCX "Use UCX where its headers are found" ON)
set(SLIP_UCX_FOUND OFF)
if(SLIP_UCX)
  find_path(UCX_INCLUDE_DIR ucp/api/ucp.h)
  if(UCX_INCLUDE_DIR)
    file(STRINGS "${UCX_INCLUDE_DIR}/ucp/api/ucp_version.h" slip_ucx_version REGEX "^#define UCP_API_(MAJOR|MINOR) ")
    string(REGEX REPLACE "[^;]*UCP_API_M[AJINOR]+ +" "" slip_ucx_version "${slip_ucx_version}")
    list(JOIN slip_ucx_version "." slip_ucx_version)
    if(slip_ucx_version VERSION_GREATER_EQUAL 1.13 AND slip_ucx_version VERSION_LESS 2)
      set(SLIP_UCX_FOUND "${slip_ucx_version}")
      file(GLOB slip_ucx_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/transport/net_ucx/*.cpp")
      set_property(SOURCE ${slip_ucx_sources} APPEND PROPERTY COMPILE_DEFINITIONS SLIP_HAS_UCX=1)
      if(NOT UCX_INCLUDE_DIR IN_LIST CMAKE_CXX_IMPLICIT_INCLUDE_DIRECTORIES)   # -I of such a folder hides <stdlib.h>
        set_property(SOURCE ${slip_ucx_sources} APPEND PROPERTY INCLUDE_DIRECTORIES "${UCX_INCLUDE_DIR}")
      endif()
      target_link_libraries(slip PRIVATE ${CMAKE_DL_LIBS})
    endif()
  endif()
endif()
message(STATUS "UCX: ${SLIP_UCX_FOUND}")

# src/watch decompresses traces with zlib. Without it (SLIP_HAS_ZLIB undefined) compressed traces are an error.
find_package(ZLIB QUIET)
set(SLIP_ZLIB_FOUND OFF)
if(ZLIB_FOUND)
  set(SLIP_ZLIB_FOUND ON)
  target_link_libraries(slip PRIVATE ZLIB::ZLIB)
  target_compile_definitions(slip PRIVATE SLIP_HAS_ZLIB=1)
endif()
message(STATUS "zlib: ${SLIP_ZLIB_FOUND}")

# src/store reads weight files with liburing. Without it (SLIP_HAS_LIBURING undefined) threads read them.
option(SLIP_LIBURING "Use liburing where it is found" ON)
set(SLIP_LIBURING_FOUND OFF)
if(SLIP_LIBURING)
  find_package(liburing QUIET MODULE)
  if(liburing_FOUND)
    set(SLIP_LIBURING_FOUND ON)
    target_link_libraries(slip PRIVATE liburing::liburing)
    target_compile_definitions(slip PRIVATE SLIP_HAS_LIBURING=1)
  endif()
endif()
message(STATUS "liburing: ${SLIP_LIBURING_FOUND}")

# src/model/cpu multiplies matrices with OpenBLAS, which it loads at run time. Without it, it uses dot products over tiles.
option(SLIP_OPENBLAS "Use OpenBLAS where the machine has it" ON)
file(GLOB slip_cpu_kernels CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/model/cpu/*.cpp")
if(SLIP_OPENBLAS)
  set_property(SOURCE ${slip_cpu_kernels} APPEND PROPERTY COMPILE_DEFINITIONS SLIP_USES_OPENBLAS=1)
endif()
if(CMAKE_BUILD_TYPE STREQUAL "Release")
  # -O3, because g++ 12 with -O2 vectorises almost no loop of the kernels.
  file(GLOB slip_codec CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/model/codec/*.cpp")
  set_property(SOURCE ${slip_cpu_kernels} ${slip_codec} APPEND PROPERTY COMPILE_OPTIONS -O3)
endif()

# The loops of reductions must be vectorised, which -fno-trapping-math permits. They must not use fused multiply-add: not
# every machine has it, and the results must have the same bits on all machines.
file(GLOB slip_reduce_loops CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/comm/reduce/reduce_*.cpp")
set_property(SOURCE ${slip_reduce_loops} APPEND PROPERTY COMPILE_OPTIONS -ffp-contract=off -fno-trapping-math
             "$<$<CONFIG:Release>:-O3>")
# The reductions on GPUs must give the same bits, too.
file(GLOB slip_gpu_reductions CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/comm/cuda/cuda_reduce_*.cu")
set_property(SOURCE ${slip_gpu_reductions} APPEND PROPERTY COMPILE_OPTIONS -fmad=false)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  set_property(SOURCE "${PROJECT_SOURCE_DIR}/src/comm/reduce/reduce_arm.cpp" APPEND PROPERTY COMPILE_OPTIONS
               -march=armv8.2-a+fp16+bf16)   # reduce.cpp calls it only if the processor has these instructions
endif()

# Device descriptions of the sim backend.
if(IS_DIRECTORY "${PROJECT_SOURCE_DIR}/src/backend/sim/devices")
  file(GLOB slip_devices CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/backend/sim/devices/*.json")
  if(slip_devices)
    slip_embed(TARGET slip NAMESPACE slip::sim FUNCTION embedded_devices HEADER backend/sim/description.hpp FILES ${slip_devices})
  endif()
endif()

# The timeline page.
file(GLOB slip_page_files CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/web/*")
slip_embed(TARGET slip NAMESPACE slip::watch FUNCTION embedded_page HEADER watch/page/page_data.hpp FILES ${slip_page_files})

file(GLOB_RECURSE slip_cli_sources CONFIGURE_DEPENDS
     "${PROJECT_SOURCE_DIR}/src/cli/*.cpp" "${PROJECT_SOURCE_DIR}/src/cli/*.cu")
slip_drop_cuda(slip_cli_sources)
if(slip_cli_sources)
  find_package(CLI11 REQUIRED)
  add_executable(slip_cli ${slip_cli_sources})
  set_target_properties(slip_cli PROPERTIES OUTPUT_NAME slip)
  target_link_libraries(slip_cli PRIVATE slip slip_internal CLI11::CLI11 $<TARGET_NAME_IF_EXISTS:slip_quickly>)
  # The program only parses its arguments and prints, so it needs little optimisation.
  if(SLIP_SANITIZE_FLAGS)
    target_compile_options(slip_cli PRIVATE -O0)
  elseif(CMAKE_BUILD_TYPE STREQUAL "Release")
    target_compile_options(slip_cli PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:-O1>")
  endif()
  # CLI11 is header-only: a source that includes it compiles for about 8 s. These sources are compiled together, in two
  # groups for two cores, so that CLI11 is compiled twice and not 19 times.
  set_target_properties(slip_cli PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  set(group 0)
  foreach(source IN LISTS slip_cli_sources)
    file(STRINGS "${source}" uses_cli11 REGEX "<CLI/CLI.hpp>" LIMIT_COUNT 1)
    if(uses_cli11)
      set_property(SOURCE "${source}" PROPERTY UNITY_GROUP "commands_${group}")
      math(EXPR group "1 - ${group}")
    endif()
  endforeach()

  file(GLOB slip_completions CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/cli/completion/*.*sh")
  slip_embed(TARGET slip_cli NAMESPACE slip::cli FUNCTION completion_scripts HEADER cli/commands.hpp
             FILES ${slip_completions})

  # The commit for --version. Each build reads it; one small source changes only if the commit has changed.
  set(commit_source "${PROJECT_BINARY_DIR}/generated/commit.cpp")
  set(write_commit "${CMAKE_COMMAND}" "-DSOURCE_DIR=${PROJECT_SOURCE_DIR}" "-DOUTPUT=${commit_source}"
      -P "${PROJECT_SOURCE_DIR}/cmake/commit.cmake")
  execute_process(COMMAND ${write_commit})
  add_custom_target(slip_commit COMMAND ${write_commit} BYPRODUCTS "${commit_source}" VERBATIM)
  add_dependencies(slip_cli slip_commit)
  target_sources(slip_cli PRIVATE "${commit_source}")

  # The program itself generates its man page and the completions of shells.
  set(slip_texts)
  foreach(text man:slip.1 bash:slip.bash zsh:_slip)
    string(REGEX REPLACE ":.*" "" what "${text}")
    string(REGEX REPLACE ".*:" "" file "${text}")
    add_custom_command(OUTPUT "${PROJECT_BINARY_DIR}/texts/${file}"
                       COMMAND "${CMAKE_COMMAND}" -E make_directory "${PROJECT_BINARY_DIR}/texts"
                       COMMAND slip_cli generate ${what} > "${PROJECT_BINARY_DIR}/texts/${file}"
                       DEPENDS slip_cli VERBATIM)
    list(APPEND slip_texts "${PROJECT_BINARY_DIR}/texts/${file}")
  endforeach()
  add_custom_target(slip_texts ALL DEPENDS ${slip_texts})
endif()
