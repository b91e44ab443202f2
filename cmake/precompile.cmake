# Unity builds and precompiled headers, to compile faster. The tidy preset uses neither, so that it finds missing includes.
# SLIP_UNITY: the sources of a folder are compiled together, and tests in units of eight. Tests then compile in half of the
# time, and the library in two thirds. No two sources of these folders may define the same local name; each test has its own
# namespace. Switch it off while you work on a single source.
option(SLIP_UNITY "Compile the sources of a folder together" OFF)
if(SLIP_UNITY)
  set(folders backend/cpu backend/cuda backend/sim base comm/api comm/cuda comm/delegate comm/diagnose comm/host comm/link
      comm/placement comm/plan comm/sim comm/staged flow/costs flow/gradients flow/pipeline flow/weights model runtime store
      topo transport/bootstrap transport/job transport/ledger transport/memory transport/socket watch watch/analysis
      watch/page watch/race watch/trace)
  if(NOT CMAKE_INTERPROCEDURAL_OPTIMIZATION)
    # Not for `make odr`: compiled together without optimisation, g++ 12 writes tables of virtual functions for their
    # abstract classes that the linker takes for different ones.
    list(APPEND folders transport/net transport/net_plugin)
  endif()
  set_target_properties(slip PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # With more inlining, g++ gives more false warnings of accesses out of bounds: they are not errors.
    target_compile_options(slip PRIVATE
      "$<$<COMPILE_LANGUAGE:CXX>:-Wno-error=array-bounds;-Wno-error=restrict;-Wno-error=stringop-overflow>")
  endif()
  foreach(folder IN LISTS folders)
    file(GLOB sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/${folder}/*.cpp")
    string(MAKE_C_IDENTIFIER "${folder}" group)
    set_property(SOURCE ${sources} PROPERTY UNITY_GROUP ${group})
  endforeach()
  if(TARGET slip_cli)
    # The labs, and the rest of the program. Sources with CLI11 have groups already (library.cmake). The local names of
    # lab/questions collide.
    foreach(source IN LISTS slip_cli_sources)
      get_source_file_property(group "${source}" UNITY_GROUP)
      if(group STREQUAL "NOTFOUND" AND source MATCHES "\\.cpp$" AND NOT source MATCHES "/src/cli/lab/questions/")
        set(group rest)
        if(source MATCHES "/src/cli/lab/")
          set(group labs)
        endif()
        set_property(SOURCE "${source}" PROPERTY UNITY_GROUP ${group})
      endif()
    endforeach()
  endif()
  # Its RaceChecker::State has a member of a local type, which g++ refuses in an included file.
  set_property(SOURCE "${PROJECT_SOURCE_DIR}/src/watch/race/race.cpp" PROPERTY SKIP_UNITY_BUILD_INCLUSION ON)
  set_target_properties(slip_nccl PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
  if(SLIP_BUILD_TESTS)
    foreach(area IN LISTS slip_test_areas)
      if(NOT area MATCHES "^(cuda|races)$")   # races: see tests.cmake
        set_target_properties(test_${area} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
      endif()
    endforeach()
    # It replaces operator new and delete. If the compiler inlined only one of them, it would warn of a mismatched free.
    set_property(SOURCE "${PROJECT_SOURCE_DIR}/tests/flow/allocations.cpp" PROPERTY SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
endif()

# SLIP_PRECOMPILE: headers that most sources include are compiled once for each kind of target. Sources of the library then
# compile in half of the time.
option(SLIP_PRECOMPILE "Compile common headers once" OFF)
if(NOT SLIP_PRECOMPILE)
  return()
endif()

set(slip_common_headers <algorithm> <array> <atomic> <chrono> <condition_variable> <cstring> <filesystem> <fstream>
    <functional> <map> <memory> <mutex> <optional> <random> <set> <span> <sstream> <string> <thread> <unordered_map>
    <variant> <vector> <fmt/format.h>)
target_precompile_headers(slip PRIVATE ${slip_common_headers})
# These sources have other optimisation flags than the rest of the library, so its precompiled headers do not fit them.
set_property(SOURCE ${slip_reduce_loops} ${slip_cpu_kernels} PROPERTY SKIP_PRECOMPILE_HEADERS ON)
# At -O0 (`make odr`), g++ 12 takes the intrinsics of a precompiled header for calls with arguments that are no constants.
set_property(SOURCE "${PROJECT_SOURCE_DIR}/src/model/codec/loops_avx512.cpp" PROPERTY SKIP_PRECOMPILE_HEADERS ON)

if(SLIP_BUILD_TESTS)
  list(POP_FRONT slip_test_areas first)
  target_precompile_headers(test_${first} PRIVATE ${slip_common_headers} <gtest/gtest.h>)
  foreach(area IN LISTS slip_test_areas)
    target_precompile_headers(test_${area} REUSE_FROM test_${first})
  endforeach()
endif()
if(TARGET slip_cli)
  # Without CLI11: sources that do not use it would compile its inline functions, too.
  target_precompile_headers(slip_cli PRIVATE ${slip_common_headers})
endif()
