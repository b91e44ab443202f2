# Every folder bench/<area>/ with sources is one program bench_<area>; bench/support/ is linked to all. bench/peers/run.sh
# builds the programs of bench/peers/ for which it finds the libraries. Without CUDA, CUDA code is left out; its path
# identifies it (cmake/cuda.cmake).
find_package(TBB QUIET)

file(GLOB slip_bench_support CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/bench/support/*.cpp")
add_library(bench_common INTERFACE)
target_include_directories(bench_common INTERFACE "${PROJECT_SOURCE_DIR}/bench")
target_link_libraries(bench_common INTERFACE slip slip_internal)
target_compile_definitions(bench_common INTERFACE SLIP_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
if(TARGET slip_cli)
  target_compile_definitions(bench_common INTERFACE SLIP_PROGRAM="$<TARGET_FILE:slip_cli>")
endif()
if(slip_bench_support)
  add_library(bench_support STATIC ${slip_bench_support})
  target_link_libraries(bench_support PUBLIC bench_common)
endif()

file(GLOB_RECURSE slip_bench_sources CONFIGURE_DEPENDS RELATIVE "${PROJECT_SOURCE_DIR}/bench"
     "${PROJECT_SOURCE_DIR}/bench/*.cpp" "${PROJECT_SOURCE_DIR}/bench/*.cu")
slip_drop_cuda(slip_bench_sources)
set(slip_special_benches support peers)
set(slip_bench_areas)
foreach(source IN LISTS slip_bench_sources)
  if(source MATCHES "^([a-z0-9_]+)/" AND NOT CMAKE_MATCH_1 IN_LIST slip_special_benches)
    set(area "${CMAKE_MATCH_1}")
    list(APPEND slip_bench_areas ${area})
    list(APPEND slip_bench_${area} "${PROJECT_SOURCE_DIR}/bench/${source}")
  endif()
endforeach()
list(REMOVE_DUPLICATES slip_bench_areas)

foreach(area IN LISTS slip_bench_areas)
  add_executable(bench_${area} ${slip_bench_${area}})
  target_link_libraries(bench_${area} PRIVATE bench_common)
  if(TARGET bench_support)
    target_link_libraries(bench_${area} PRIVATE bench_support)
  endif()
  if(TARGET slip_cli)
    add_dependencies(bench_${area} slip_cli)   # benchmarks may start the slip program
  endif()
  if(slip_bench_${area} MATCHES "\\.cu(;|$)")
    target_link_libraries(bench_${area} PRIVATE CUDA::cudart_static)
  endif()
endforeach()
# The network plug-in that the benchmark of networks loads.
target_compile_definitions(bench_networks PRIVATE SLIP_OWN_PLUGIN="$<TARGET_FILE:slip_nccl_net>")
add_dependencies(bench_networks slip_nccl_net)
# Slipstream's program in the comparison with other libraries; bench/peers/run.sh builds their programs.
add_executable(bench_peers_slip "${PROJECT_SOURCE_DIR}/bench/peers/slip_bench.cpp")
target_link_libraries(bench_peers_slip PRIVATE slip)

if(TARGET bench_streams AND TARGET TBB::tbb)
  target_link_libraries(bench_streams PRIVATE TBB::tbb)
  target_compile_definitions(bench_streams PRIVATE SLIP_BENCH_TBB=1)
endif()
