# Installation, and the package that find_package(slipstream) reads.
include(CMakePackageConfigHelpers)
set(slip_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/slipstream")

install(TARGETS slip EXPORT slipstream
        ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}"
        FILE_SET HEADERS DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(EXPORT slipstream NAMESPACE slip:: FILE slipstreamTargets.cmake DESTINATION "${slip_package_dir}")
if(TARGET slip_cli)
  install(TARGETS slip_cli RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
endif()

configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/slipstreamConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/slipstreamConfig.cmake" INSTALL_DESTINATION "${slip_package_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/slipstreamConfigVersion.cmake"
  VERSION "${PROJECT_VERSION}" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/slipstreamConfig.cmake" "${PROJECT_BINARY_DIR}/slipstreamConfigVersion.cmake"
        DESTINATION "${slip_package_dir}")
if(SLIP_HWLOC_FOUND)
  install(FILES "${PROJECT_SOURCE_DIR}/cmake/Findhwloc.cmake" DESTINATION "${slip_package_dir}")
endif()
if(SLIP_OPENBLAS_FOUND)
  install(FILES "${PROJECT_SOURCE_DIR}/cmake/Findopenblas.cmake" DESTINATION "${slip_package_dir}")
endif()
