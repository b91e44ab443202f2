# libnccl.so.2 (target slip_nccl): NCCL's C interface, src/nccl, in a shared library with a copy of the library `slip`.
# Programs that were linked with NCCL load it by LD_PRELOAD or LD_LIBRARY_PATH, which `slip launch --nccl` sets.
file(GLOB slip_nccl_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/nccl/*.cpp")
slip_drop_cuda(slip_nccl_sources)
set(slip_nccl_exports "${PROJECT_SOURCE_DIR}/src/nccl/exports.map")
add_library(slip_nccl SHARED ${slip_nccl_sources})
# C programs may pass any number as an enum, and the functions return an error. UBSan would end the program before that.
target_compile_options(slip_nccl PRIVATE -fno-sanitize=enum)
# It is built and installed in a separate folder, so that the linker does not find it instead of the system's NCCL.
set(SLIP_NCCL_FOLDER slipstream)
set_target_properties(slip_nccl PROPERTIES OUTPUT_NAME nccl VERSION 2.28.9 SOVERSION 2
  LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/${SLIP_NCCL_FOLDER}" LINK_DEPENDS "${slip_nccl_exports}"
  CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
target_link_libraries(slip_nccl PRIVATE slip slip_internal)
target_include_directories(slip_nccl INTERFACE "${PROJECT_SOURCE_DIR}/src/nccl")
target_link_options(slip_nccl PRIVATE "-Wl,--version-script=${slip_nccl_exports}" -Wl,--as-needed)
if(TARGET slip_cli)
  # `slip launch --nccl` looks for the library beside the program (in the build) and below lib/ (installed).
  file(RELATIVE_PATH slip_nccl_installed "/${CMAKE_INSTALL_BINDIR}" "/${CMAKE_INSTALL_LIBDIR}/${SLIP_NCCL_FOLDER}")
  target_compile_definitions(slip_cli PRIVATE SLIP_NCCL_BUILT="${SLIP_NCCL_FOLDER}"
                             SLIP_NCCL_INSTALLED="${slip_nccl_installed}")
  add_dependencies(slip_cli slip_nccl)
endif()
install(TARGETS slip_nccl LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}/${SLIP_NCCL_FOLDER}")
install(FILES "${PROJECT_SOURCE_DIR}/src/nccl/nccl.h" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/slipstream")
