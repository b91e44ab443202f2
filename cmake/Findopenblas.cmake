# Finds OpenBLAS with its C interface and defines openblas::openblas. The serial one is preferred: src/model/cpu shares
# out the cores itself. Installed beside the package configuration, because programs that link the static library need
# it too.
#
# openblas_config.h tells its headers from those of other BLAS libraries, which have a cblas.h too.
find_path(openblas_INCLUDE_DIR openblas_config.h PATH_SUFFIXES openblas-serial openblas-pthread openblas)
find_library(openblas_LIBRARY openblas PATH_SUFFIXES openblas-serial openblas-pthread)
mark_as_advanced(openblas_INCLUDE_DIR openblas_LIBRARY)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(openblas REQUIRED_VARS openblas_LIBRARY openblas_INCLUDE_DIR)
if(openblas_FOUND AND NOT TARGET openblas::openblas)
  add_library(openblas::openblas UNKNOWN IMPORTED)
  set_target_properties(openblas::openblas PROPERTIES
    IMPORTED_LOCATION "${openblas_LIBRARY}" INTERFACE_INCLUDE_DIRECTORIES "${openblas_INCLUDE_DIR}")
endif()
