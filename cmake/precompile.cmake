# Headers that most sources include, compiled once: for the builds with sanitizers, whose compile time continuous
# integration pays. The release build goes without, so a source that forgets an include does not pass.
option(SLIP_PRECOMPILE "Compile common headers once" OFF)
if(NOT SLIP_PRECOMPILE)
  return()
endif()

set(slip_common_headers <algorithm> <array> <atomic> <chrono> <condition_variable> <cstring> <filesystem> <fstream>
    <functional> <map> <memory> <mutex> <optional> <random> <set> <span> <sstream> <string> <thread> <unordered_map>
    <variant> <vector> <fmt/format.h>)
target_precompile_headers(slip PRIVATE ${slip_common_headers})
# Other flags than the rest of the library: what was compiled does not fit them.
set_property(SOURCE ${slip_reduce_loops} PROPERTY SKIP_PRECOMPILE_HEADERS ON)

if(SLIP_BUILD_TESTS)
  list(POP_FRONT slip_test_areas first)
  target_precompile_headers(test_${first} PRIVATE ${slip_common_headers} <gtest/gtest.h>)
  foreach(area IN LISTS slip_test_areas)
    target_precompile_headers(test_${area} REUSE_FROM test_${first})
  endforeach()
endif()
if(TARGET slip_cli)
  target_precompile_headers(slip_cli PRIVATE ${slip_common_headers} <nlohmann/json.hpp> <CLI/CLI.hpp>)
endif()
