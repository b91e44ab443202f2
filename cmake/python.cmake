# The Python package slipstream, in build/<preset>/python: the files of python/slipstream, and the extension module _core
# (target slip_python). `slip_wheel` makes a wheel of it in build/.
#
# SLIP_PYTHON: AUTO (if Python's headers and pybind11 are found), ON or OFF. Python_EXECUTABLE: the interpreter. pybind11
# is the system's package or the copy in PyTorch.
set(SLIP_PYTHON AUTO CACHE STRING "Python package: AUTO (if pybind11 is found), ON or OFF")
set_property(CACHE SLIP_PYTHON PROPERTY STRINGS AUTO ON OFF)
set(SLIP_PYTHON_FOUND OFF)
set(SLIP_PYTHON_DIR "${PROJECT_BINARY_DIR}/python")   # for PYTHONPATH
if(NOT SLIP_PYTHON MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "SLIP_PYTHON is '${SLIP_PYTHON}'; it must be AUTO, ON or OFF")
endif()

# Chooses the first python3 of PATH if it has pybind11 or torch. Otherwise Debian's /usr/bin/python3: a python3 of pyenv or
# conda does not have the packages of Debian.
function(slip_choose_python)
  if(DEFINED Python_EXECUTABLE)
    return()
  endif()
  find_program(first python3 NO_CACHE)
  foreach(package pybind11 torch)
    if(first)
      execute_process(COMMAND "${first}" -c "import importlib.util, sys; sys.exit(importlib.util.find_spec('${package}') is None)"
                      RESULT_VARIABLE missing OUTPUT_QUIET ERROR_QUIET)
      if(missing EQUAL 0)
        return()
      endif()
    endif()
  endforeach()
  if(EXISTS /usr/bin/python3)
    set(Python_EXECUTABLE /usr/bin/python3 CACHE FILEPATH "Python interpreter of the package")
  endif()
endfunction()

if(SLIP_PYTHON STREQUAL "OFF")
  set(slip_python_why "switched off")
elseif(NOT SLIP_SANITIZE STREQUAL "none")
  set(slip_python_why "a sanitizer must be loaded before the interpreter")
else()
  slip_choose_python()
  find_package(Python 3.9 QUIET COMPONENTS Interpreter Development.Module)
  if(Python_FOUND)
    execute_process(COMMAND "${Python_EXECUTABLE}" -c "import pybind11; print(pybind11.get_cmake_dir())"
                    OUTPUT_VARIABLE hint OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    find_package(pybind11 2.10 QUIET CONFIG HINTS "${hint}")
    if(pybind11_FOUND)
      set(slip_pybind "${pybind11_INCLUDE_DIR}")
      set(slip_pybind_version "pybind11 ${pybind11_VERSION}")
    else()
      execute_process(COMMAND "${Python_EXECUTABLE}" -c "import torch.utils.cpp_extension as e; print(';'.join(e.include_paths()))"
                      OUTPUT_VARIABLE hint OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
      find_path(slip_pybind pybind11/pybind11.h PATHS ${hint} NO_DEFAULT_PATH NO_CACHE)
      set(slip_pybind_version "pybind11 of PyTorch")
    endif()
  endif()
  if(Python_FOUND AND slip_pybind)
    set(SLIP_PYTHON_FOUND ON)
    set(slip_python_why "Python ${Python_VERSION}, ${Python_EXECUTABLE}, ${slip_pybind_version}")
  else()
    set(slip_python_why "no Python 3.9 with headers, or no pybind11")
    if(SLIP_PYTHON STREQUAL "ON")
      message(FATAL_ERROR "SLIP_PYTHON=ON, but ${slip_python_why}; looked for ${Python_EXECUTABLE} (set Python_EXECUTABLE)")
    endif()
  endif()
endif()
message(STATUS "Python package: ${SLIP_PYTHON_FOUND} (${slip_python_why})")
if(NOT SLIP_PYTHON_FOUND)
  return()
endif()

file(GLOB slip_python_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/python/src/*.cpp")
Python_add_library(slip_python MODULE WITH_SOABI ${slip_python_sources})
set_target_properties(slip_python PROPERTIES OUTPUT_NAME _core LIBRARY_OUTPUT_DIRECTORY "${SLIP_PYTHON_DIR}/slipstream"
                      CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON   # as pybind11 requires
                      UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 5   # pybind11's headers take nearly all of the compile time
                      CXX_CLANG_TIDY "")   # most findings would be in the macros of pybind11
target_include_directories(slip_python SYSTEM PRIVATE "${slip_pybind}")
target_link_libraries(slip_python PRIVATE slip slip_internal)
# Only PyInit__core is exported. Otherwise its symbols could be bound to those of another module with a copy of the library.
set(slip_python_exports "${PROJECT_SOURCE_DIR}/python/src/exports.map")
target_link_options(slip_python PRIVATE "-Wl,--version-script=${slip_python_exports}" -Wl,--as-needed)
set_target_properties(slip_python PROPERTIES LINK_DEPENDS "${slip_python_exports}")

# The Python files are links to the sources, so that a change needs no build.
file(GLOB slip_python_files CONFIGURE_DEPENDS RELATIVE "${PROJECT_SOURCE_DIR}/python/slipstream"
     "${PROJECT_SOURCE_DIR}/python/slipstream/*.py" "${PROJECT_SOURCE_DIR}/python/slipstream/*.pyi"
     "${PROJECT_SOURCE_DIR}/python/slipstream/py.typed")
file(MAKE_DIRECTORY "${SLIP_PYTHON_DIR}/slipstream")
foreach(file IN LISTS slip_python_files)
  file(CREATE_LINK "${PROJECT_SOURCE_DIR}/python/slipstream/${file}" "${SLIP_PYTHON_DIR}/slipstream/${file}" SYMBOLIC)
endforeach()
file(GENERATE OUTPUT "${SLIP_PYTHON_DIR}/slipstream/_version.py" CONTENT "__version__ = \"${PROJECT_VERSION}\"\n")

add_custom_target(slip_wheel
  COMMAND "${Python_EXECUTABLE}" -B "${PROJECT_SOURCE_DIR}/python/make_wheel.py" "${SLIP_PYTHON_DIR}" "${PROJECT_SOURCE_DIR}/build"
          --version "${PROJECT_VERSION}" --license "${PROJECT_SOURCE_DIR}/LICENSE" --readme "${PROJECT_SOURCE_DIR}/docs/python.md"
          --strip "${CMAKE_STRIP}"
  DEPENDS slip_python VERBATIM)

if(SLIP_BUILD_TESTS)
  enable_testing()
  file(GLOB slip_python_tests CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tests/python/test_*.py")
  list(FILTER slip_python_tests EXCLUDE REGEX "/test_distributed\\.py$")   # needs PyTorch; registered with its backend
  foreach(test IN LISTS slip_python_tests)
    cmake_path(GET test STEM name)
    string(REGEX REPLACE "^test_" "" name "${name}")
    add_test(NAME python.${name} COMMAND "${Python_EXECUTABLE}" -B "${test}" WORKING_DIRECTORY "${SLIP_PYTHON_DIR}")
    set_tests_properties(python.${name} PROPERTIES LABELS python TIMEOUT 240
      ENVIRONMENT "PYTHONPATH=${SLIP_PYTHON_DIR};SLIP_WHEEL_MAKER=${PROJECT_SOURCE_DIR}/python/make_wheel.py")
  endforeach()
endif()
