# The tests. The folder of a file determines its test:
#   tests/<area>/**.cpp   one GoogleTest program test_<area>; ctest entries <area>.<Suite>
#   tests/support/        helpers, linked to every test program
#   tests/fuzz/*.cpp      programs with their own main(seconds, seed); 5 seconds each
#   tests/scripts/        self-tests of the checkers in scripts/
#   tests/consumer/       a project of its own that uses the installed package
#   tests/nccl/client.c   a C program that calls NCCL; it runs its ranks as threads, in one thread and as processes
#   tests/page/           the timeline page in Chromium, controlled by node; only without sanitizers
# There are also tests that run the examples and the checkers, and one that compiles each public header on its own.
enable_testing()
find_package(GTest REQUIRED)
find_package(Python3 REQUIRED COMPONENTS Interpreter)

# Areas whose tests run many threads. They get the label concurrency; CI runs them with the thread sanitizer.
set(slip_concurrent_areas base backend comm conformance flow nccl races runtime store stress transport watch)
# Suites of these areas that do not get that label: they start no thread, or only processes of the slip program. The
# sanitizer would find nothing in them, and they take long.
string(CONCAT slip_one_thread_suites
  "^(comm\\.(CostModel|Predict|MessagePlanOf|Rails|RelayChoice|RelayPlans|FormationPlans|SimTimesOf|By/SimTimes|"
  "All/Reduce(Types|Bytes)|Every/(Message|Shared)Plans)|"
  "flow\\.(ClusterCost|BucketPlan|PlanLimits|PlanWeights|RandomGraphs)|"
  "transport\\.(Clusters|ClusterLaunch|SlipLaunch)|"
  "watch\\.(Fixes|TraceReader|TraceReaderFuzz|TraceFile|TimeOrder|Replay))$")
# ctest has nine slots (CMakePresets.json), and a test takes three of them: so three tests share the two cores of CI. The
# suites of the following lists mostly wait, for limits of silence, deadlines or other processes. Each takes one slot and
# starts early. Of each list one suite runs at a time (a lock): so three of them run beside two other tests, and the load
# of the machine is never higher than that of three other tests.
set(slip_waiting_suites
    "^(comm\\.Net/HostsOver|comm\\.Hangs|transport\\.(SilenceInInit|BadNetwork))$"
    "^(transport\\.(SetupLosses|Plugins/Nets|ClusterLaunch|PluginFaults))$"
    "^(transport\\.(Clusters|Over/NetFailures|Tcp/Nets|Ucx/Nets|Losses|Cables)|comm\\.(Rails|Hosts))$")
set(slip_slots 3)
# Areas that CI does not run with the address sanitizer, to save time; `ctest --preset dev` runs all areas with it.
set(slip_thread_only_areas backend base cli comm conformance cuda nccl races runtime stress)
set(slip_special_areas support consumer fuzz scripts page)
set(slip_timeout_none 600)   # seconds for one ctest entry; the longest takes 200 on a busy machine with 2 cores
set(slip_timeout_thread 1200)
set(slip_timeout_address 1200)
set(slip_test_timeout ${slip_timeout_${SLIP_SANITIZE}})
set(slip_test_scratch "${PROJECT_BINARY_DIR}/test-scratch")   # where tests run and may write
file(MAKE_DIRECTORY "${slip_test_scratch}")

add_library(test_common INTERFACE)
target_include_directories(test_common INTERFACE "${PROJECT_SOURCE_DIR}/tests")
target_link_libraries(test_common INTERFACE slip slip_internal $<TARGET_NAME_IF_EXISTS:slip_quickly>)
target_compile_definitions(test_common INTERFACE SLIP_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
set(SLIP_PROGRAM_FILE "" CACHE FILEPATH "The slip program that tests start; empty: the one of this build")
if(SLIP_PROGRAM_FILE)
  target_compile_definitions(test_common INTERFACE SLIP_PROGRAM="${SLIP_PROGRAM_FILE}")
elseif(TARGET slip_cli)
  target_compile_definitions(test_common INTERFACE SLIP_PROGRAM="$<TARGET_FILE:slip_cli>")
endif()
if(CMAKE_BUILD_TYPE STREQUAL "Release")
  # The code under test is in the library: the tests themselves need little optimisation, and compile faster with less. With
  # -O1, g++ 12 gives false warnings of accesses out of bounds for concatenated strings.
  target_compile_options(test_common INTERFACE
    "$<$<COMPILE_LANGUAGE:CXX>:-O1;-Wno-array-bounds;-Wno-restrict;-Wno-stringop-overflow>")
endif()
if(SLIP_SANITIZE_FLAGS AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # As in options.cmake: whether g++ gives this false warning depends on the length of the path of this folder.
  target_compile_options(test_common INTERFACE -Wno-stringop-overflow)
endif()
file(GLOB slip_test_support CONFIGURE_DEPENDS
     "${PROJECT_SOURCE_DIR}/tests/support/*.cpp" "${PROJECT_SOURCE_DIR}/tests/support/*.cu")
slip_drop_cuda(slip_test_support)
if(slip_test_support)
  add_library(test_support STATIC ${slip_test_support})
  target_link_libraries(test_support PUBLIC test_common GTest::gtest)
endif()

# Links a test program, and makes it depend on the slip program, which tests may start.
function(slip_test_program target)
  target_link_libraries(${target} PRIVATE test_common)
  if(TARGET test_support)
    target_link_libraries(${target} PRIVATE test_support)
  endif()
  if(TARGET slip_cli AND NOT SLIP_PROGRAM_FILE)
    add_dependencies(${target} slip_cli)
  endif()
endfunction()

# Adds one ctest entry for each suite; ctest lists the suites when it starts. With an entry for each case, ctest would start
# a process for each of thousands of conformance cases, which takes longer than the cases if a sanitizer is on. With an entry
# for each program, ctest would not show which suite failed and could run less in parallel. Only with the address sanitizer
# of g++ there is one entry for each program: on aarch64 the leak check of g++ 12 takes 4 s at every exit.
function(slip_add_suites target area labels)
  set(whole OFF)
  if(SLIP_SANITIZE STREQUAL "address" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    set(whole ON)
  endif()
  set(file "${PROJECT_BINARY_DIR}/suites/${target}.cmake")
  file(GENERATE OUTPUT "${file}" CONTENT "set(program \"$<TARGET_FILE:${target}>\")
set(area \"${area}\")
set(labels \"${labels}\")
set(one_thread [[${slip_one_thread_suites}]])
set(timeout ${slip_test_timeout})
set(waiting [[${slip_waiting_suites}]])
set(slots ${slip_slots})
set(whole ${whole})
set(scratch \"${slip_test_scratch}\")
include(\"${PROJECT_SOURCE_DIR}/cmake/gtest_suites.cmake\")
")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES "${file}")
endfunction()

file(GLOB_RECURSE slip_test_sources CONFIGURE_DEPENDS RELATIVE "${PROJECT_SOURCE_DIR}/tests"
     "${PROJECT_SOURCE_DIR}/tests/*.cpp" "${PROJECT_SOURCE_DIR}/tests/*.cu")
slip_drop_cuda(slip_test_sources)
set(slip_test_areas)
foreach(source IN LISTS slip_test_sources)
  if(source MATCHES "^([a-z0-9_]+)/" AND NOT CMAKE_MATCH_1 IN_LIST slip_special_areas)
    set(area "${CMAKE_MATCH_1}")
    list(APPEND slip_test_areas ${area})
    list(APPEND slip_test_${area} "${PROJECT_SOURCE_DIR}/tests/${source}")
  endif()
endforeach()
list(REMOVE_DUPLICATES slip_test_areas)

add_custom_target(concurrency_tests)   # builds the programs of `ctest -L concurrency`
add_custom_target(memory_tests)        # builds the programs of `ctest -L memory`
foreach(area IN LISTS slip_test_areas)
  add_executable(test_${area} ${slip_test_${area}})
  slip_test_program(test_${area})
  target_link_libraries(test_${area} PRIVATE GTest::gtest GTest::gtest_main)   # main() is that of tests/support
  set(labels ${area})
  if(area IN_LIST slip_concurrent_areas)
    list(APPEND labels concurrency)
    add_dependencies(concurrency_tests test_${area})
  endif()
  if(NOT area IN_LIST slip_thread_only_areas)
    list(APPEND labels memory)
    add_dependencies(memory_tests test_${area})
  endif()
  slip_add_suites(test_${area} ${area} "${labels}")
endforeach()

enable_language(C)
include(test_plugins)   # network plug-ins of NCCL, for the tests of the loader

# Many small sources, each in its own namespace: compiled together they take a tenth of the time.
set_target_properties(test_races PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 20)

# The race checker must find no race in these programs.
if(SLIP_SANITIZE STREQUAL "none")   # tests/races and tests/watch run the checker under sanitizers
add_test(NAME conformance.checked COMMAND test_conformance --gtest_brief=1 WORKING_DIRECTORY "${slip_test_scratch}")
set_tests_properties(conformance.checked PROPERTIES ENVIRONMENT SLIP_CHECK=1 LABELS conformance
                     TIMEOUT ${slip_test_timeout})

add_test(NAME flow.checked COMMAND test_flow --gtest_brief=1 --gtest_filter=RandomGraphs.AreRight*
         WORKING_DIRECTORY "${slip_test_scratch}")
set_tests_properties(flow.checked PROPERTIES ENVIRONMENT SLIP_CHECK=1 LABELS flow TIMEOUT ${slip_test_timeout})
endif()

# fake_nccl: a test double for NVIDIA's libnccl.so.2, which tests of SLIP_NCCL load. The tests after it check the exported
# names of our libnccl.so.2, and run a program that calls NCCL with it on host memory.
add_library(fake_nccl MODULE "${PROJECT_SOURCE_DIR}/tests/comm/fake_nccl.c")
set_target_properties(fake_nccl PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}")
target_compile_definitions(test_comm PRIVATE SLIP_FAKE_NCCL="$<TARGET_FILE:fake_nccl>")
add_dependencies(test_comm fake_nccl slip_nccl)
target_link_libraries(test_nccl PRIVATE slip_nccl)
target_compile_options(test_nccl PRIVATE -fno-sanitize=enum)   # as the library: see nccl.cmake
add_executable(nccl_client "${PROJECT_SOURCE_DIR}/tests/nccl/client.c")
target_compile_options(nccl_client PRIVATE -Wall -Wextra)
target_compile_definitions(nccl_client PRIVATE SLIP_NCCL_WITHOUT_CUDA)
target_link_libraries(nccl_client PRIVATE slip_nccl Threads::Threads)
add_test(NAME nccl.exports COMMAND Python3::Interpreter -B "${PROJECT_SOURCE_DIR}/tests/nccl/check_exports.py"
         "$<TARGET_FILE:slip_nccl>")
add_test(NAME nccl.client_threads COMMAND nccl_client threads 4)
add_test(NAME nccl.client_group COMMAND nccl_client group 3)
set(slip_nccl_tests nccl.exports nccl.client_threads nccl.client_group)
if(TARGET slip_cli AND SLIP_SANITIZE STREQUAL "none")   # a sanitizer must be loaded before a preloaded library
  add_test(NAME nccl.client_processes
           COMMAND bash "${PROJECT_SOURCE_DIR}/tests/nccl/processes.sh" "$<TARGET_FILE:slip_cli>" "$<TARGET_FILE:nccl_client>")
  list(APPEND slip_nccl_tests nccl.client_processes)
endif()
set_tests_properties(${slip_nccl_tests} PROPERTIES LABELS nccl TIMEOUT ${slip_test_timeout} ENVIRONMENT SLIP_NCCL_DEVICE=cpu)

file(GLOB slip_fuzz_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tests/fuzz/*.cpp")
foreach(source IN LISTS slip_fuzz_sources)
  cmake_path(GET source STEM name)
  add_executable(fuzz_${name} "${source}")
  slip_test_program(fuzz_${name})
  target_link_libraries(fuzz_${name} PRIVATE GTest::gtest)
  add_test(NAME fuzz.${name} COMMAND fuzz_${name} 5 1 WORKING_DIRECTORY "${slip_test_scratch}")
  set_tests_properties(fuzz.${name} PROPERTIES LABELS "fuzz;memory" TIMEOUT ${slip_test_timeout})
  add_dependencies(memory_tests fuzz_${name})
endforeach()

foreach(name IN LISTS slip_example_names)
  add_test(NAME examples.${name} COMMAND example_${name} WORKING_DIRECTORY "${slip_test_scratch}")
  set_tests_properties(examples.${name} PROPERTIES LABELS examples TIMEOUT ${slip_test_timeout} SKIP_RETURN_CODE 77)
endforeach()

if(TARGET slip_cli)
  add_test(NAME cli.help COMMAND slip_cli --help)
  set_tests_properties(cli.help PROPERTIES LABELS cli TIMEOUT 60)
endif()

# The checkers on this tree, and the tests of the checkers.
if(SLIP_SANITIZE STREQUAL "none")   # they only read files, so a sanitizer makes no difference
foreach(check check_layers.py check_sizes.py check_odr.py check_locks.py check_format.sh check_shell.sh check_text.sh)
  cmake_path(GET check STEM name)
  if(check MATCHES "\\.py$")
    add_test(NAME scripts.${name} COMMAND Python3::Interpreter -B "${PROJECT_SOURCE_DIR}/scripts/${check}"
             "${PROJECT_SOURCE_DIR}")
  else()
    add_test(NAME scripts.${name} COMMAND bash "${PROJECT_SOURCE_DIR}/scripts/${check}" "${PROJECT_SOURCE_DIR}")
  endif()
  set_tests_properties(scripts.${name} PROPERTIES LABELS scripts TIMEOUT 120 SKIP_RETURN_CODE 77)
endforeach()
file(GLOB slip_script_tests CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tests/scripts/test_*.py")
foreach(source IN LISTS slip_script_tests)
  cmake_path(GET source STEM name)
  add_test(NAME scripts.${name} COMMAND Python3::Interpreter -B "${source}" WORKING_DIRECTORY "${slip_test_scratch}")
  set_tests_properties(scripts.${name} PROPERTIES LABELS scripts TIMEOUT 120 SKIP_RETURN_CODE 77)
endforeach()
endif()

# The timeline page in Chromium. Unit tests cover the writer of the page, also under sanitizers.
if(TARGET slip_cli AND SLIP_SANITIZE STREQUAL "none")
  add_test(NAME page.chromium COMMAND bash "${PROJECT_SOURCE_DIR}/tests/page/run.sh" page_test.js "$<TARGET_FILE:slip_cli>")
  add_test(NAME page.runs COMMAND bash "${PROJECT_SOURCE_DIR}/tests/page/run.sh" runs_test.js "$<TARGET_FILE:slip_cli>")
  set_tests_properties(page.chromium page.runs PROPERTIES LABELS page TIMEOUT 600 SKIP_RETURN_CODE 77)
endif()

# Each public header compiles on its own.
if(SLIP_SANITIZE STREQUAL "none")
  add_test(NAME headers.self_contained
           COMMAND "${PROJECT_SOURCE_DIR}/scripts/check_headers.sh" "${CMAKE_CXX_COMPILER}")
  set_tests_properties(headers.self_contained PROPERTIES LABELS headers TIMEOUT 600)
endif()

# A project that uses the installed package can be built.
if(SLIP_SANITIZE STREQUAL "none")
  add_test(NAME consumer.find_package
           COMMAND "${CMAKE_COMMAND}" "-DBUILD_DIR=${PROJECT_BINARY_DIR}"
                   "-DCONSUMER=${PROJECT_SOURCE_DIR}/tests/consumer" "-DGENERATOR=${CMAKE_GENERATOR}"
                   "-DCOMPILER=${CMAKE_CXX_COMPILER}" "-DBUILD_TYPE=${CMAKE_BUILD_TYPE}"
                   -P "${PROJECT_SOURCE_DIR}/cmake/consumer.cmake")
  set_tests_properties(consumer.find_package PROPERTIES LABELS consumer TIMEOUT 600)
endif()

# The suites of GoogleTest programs are no tests yet: gtest_suites.cmake gives them their slots.
get_property(slip_other_tests DIRECTORY PROPERTY TESTS)
set_tests_properties(${slip_other_tests} PROPERTIES PROCESSORS ${slip_slots})
