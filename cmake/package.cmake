# Installation, the files for find_package(slipstream) and pkg-config, and the packages that cpack makes.
include(CMakePackageConfigHelpers)
set(slip_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/slipstream")

install(TARGETS slip EXPORT slipstream
        ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}"
        FILE_SET HEADERS DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(EXPORT slipstream NAMESPACE slip:: FILE slipstreamTargets.cmake DESTINATION "${slip_package_dir}")
if(TARGET slip_cli)
  install(TARGETS slip_cli RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
  set(slip_texts_dir "${PROJECT_BINARY_DIR}/texts")   # written by the program (library.cmake)
  install(FILES "${slip_texts_dir}/slip.1" DESTINATION "${CMAKE_INSTALL_MANDIR}/man1")
  install(FILES "${slip_texts_dir}/slip.bash" RENAME slip
          DESTINATION "${CMAKE_INSTALL_DATADIR}/bash-completion/completions")
  install(FILES "${slip_texts_dir}/_slip" DESTINATION "${CMAKE_INSTALL_DATADIR}/zsh/site-functions")
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
if(SLIP_LIBURING_FOUND)
  install(FILES "${PROJECT_SOURCE_DIR}/cmake/Findliburing.cmake" DESTINATION "${slip_package_dir}")
endif()

# For pkg-config. The library is static, so its dependencies must be linked, too: Requires and Libs, not the private ones.
set(slip_pc_requires "fmt")
set(slip_pc_libs "-lpthread")
if(SLIP_HWLOC_FOUND)
  string(APPEND slip_pc_requires ", hwloc")
endif()
if(SLIP_ZLIB_FOUND)
  string(APPEND slip_pc_requires ", zlib")
endif()
if(SLIP_LIBURING_FOUND)
  string(APPEND slip_pc_requires ", liburing")
endif()
if(SLIP_CUDA_FOUND)
  string(APPEND slip_pc_libs " -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -lrt -ldl")
endif()
file(RELATIVE_PATH slip_pc_prefix "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
configure_file("${PROJECT_SOURCE_DIR}/cmake/slipstream.pc.in" "${PROJECT_BINARY_DIR}/slipstream.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/slipstream.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")

file(GLOB slip_docs CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/docs/*.md" "${PROJECT_SOURCE_DIR}/docs/*.png"
     "${PROJECT_SOURCE_DIR}/docs/*.svg")
install(FILES "${PROJECT_SOURCE_DIR}/README.md" "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}")
install(FILES ${slip_docs} DESTINATION "${CMAKE_INSTALL_DOCDIR}/docs")

# `make package`: a .deb and a tarball in build/.
set(CPACK_GENERATOR "DEB;TGZ")
set(CPACK_PACKAGE_NAME "slipstream")
set(CPACK_PACKAGE_VENDOR "Slipstream")
set(CPACK_PACKAGE_CONTACT "The Slipstream authors <slipstream@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_RESOURCE_FILE_LICENSE "${PROJECT_SOURCE_DIR}/LICENSE")
set(CPACK_PACKAGE_FILE_NAME "slipstream-${PROJECT_VERSION}-${CMAKE_SYSTEM_PROCESSOR}")
set(CPACK_PACKAGE_DIRECTORY "${PROJECT_SOURCE_DIR}/build")
set(CPACK_PACKAGING_INSTALL_PREFIX "/usr")
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION "libdevel")
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
# Programs that link the library need these packages.
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "libfmt-dev, libhwloc-dev, zlib1g-dev, liburing-dev, libopenblas0-pthread, pkg-config")
include(CPack)
