# Headers that most sources include, compiled once for each kind of target: sources of the library compile in half of the
# time. The tidy preset goes without, so that a source that forgets an include is found there.
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
