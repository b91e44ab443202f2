# libnccl-net-slip.so (target slip_nccl_net): Slipstream's TCP transport as a network plug-in of NCCL, src/nccl_net. It
# contains a copy of the library `slip`. NCCL loads it with NCCL_NET_PLUGIN=slip, or by its path.
file(GLOB slip_nccl_net_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/nccl_net/*.cpp")
set(slip_nccl_net_exports "${PROJECT_SOURCE_DIR}/src/nccl_net/exports.map")
add_library(slip_nccl_net MODULE ${slip_nccl_net_sources})
set_target_properties(slip_nccl_net PROPERTIES OUTPUT_NAME nccl-net-slip
  LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/${SLIP_NCCL_FOLDER}" LINK_DEPENDS "${slip_nccl_net_exports}"
  CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
target_link_libraries(slip_nccl_net PRIVATE slip slip_internal)
# nodelete, because NCCL unloads plug-ins: the static objects of the library must live until the process ends.
target_link_options(slip_nccl_net PRIVATE "-Wl,--version-script=${slip_nccl_net_exports}" -Wl,--as-needed
                    -Wl,-z,nodelete)
install(TARGETS slip_nccl_net LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}/${SLIP_NCCL_FOLDER}")
