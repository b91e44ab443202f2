# Two ways to compile faster. The tidy preset uses neither, so that a source that forgets an include is found there.
# SLIP_UNITY: sources of a folder are compiled together, tests eight at a time. Tests then compile in half of the time, and
# the library in two thirds. In these folders no two sources define the same local name; each test has a namespace of its
# own. Whoever works on one source may switch it off.
option(SLIP_UNITY "Compile the sources of a folder together" OFF)
if(SLIP_UNITY)
  set(folders backend/cpu backend/cuda backend/sim base comm/api comm/cuda comm/delegate comm/diagnose comm/host comm/link
      comm/placement comm/sim comm/staged flow/costs flow/gradients flow/pipeline flow/weights model runtime store topo
      transport/ledger transport/socket watch/analysis watch/page watch/trace)
  set_target_properties(slip PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # The more g++ inlines, the more accesses out of bounds it sees where there are none: a warning, no failed build.
    target_compile_options(slip PRIVATE
      "$<$<COMPILE_LANGUAGE:CXX>:-Wno-error=array-bounds;-Wno-error=restrict;-Wno-error=stringop-overflow>")
  endif()
  foreach(folder IN LISTS folders)
    file(GLOB sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/${folder}/*.cpp")
    string(MAKE_C_IDENTIFIER "${folder}" group)
    set_property(SOURCE ${sources} PROPERTY UNITY_GROUP ${group})
  endforeach()
  set_target_properties(slip_nccl PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
  if(SLIP_BUILD_TESTS)
    foreach(area IN LISTS slip_test_areas)
      if(NOT area MATCHES "^(cuda|races)$")   # races: see tests.cmake
        set_target_properties(test_${area} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
      endif()
    endforeach()
    # It replaces operator new and delete; a compiler that inlines only one of the two sees memory freed the wrong way.
    set_property(SOURCE "${PROJECT_SOURCE_DIR}/tests/flow/allocations.cpp" PROPERTY SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
endif()

# Headers that most sources include, compiled once for each kind of target: sources of the library compile in half of the
# time.
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
