# Run by ctest (cmake -P): installs into BUILD_DIR/prefix, then configures, builds and runs tests/consumer with the installed
# package, as a user would.
set(prefix "${BUILD_DIR}/prefix")
set(work "${BUILD_DIR}/consumer")
file(REMOVE_RECURSE "${prefix}" "${work}")

function(step what)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE text ERROR_VARIABLE text)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${what} failed (${status}):\n${text}")
  endif()
  message(STATUS "${what}: ok")
endfunction()

step("install" "${CMAKE_COMMAND}" --install "${BUILD_DIR}" --prefix "${prefix}")
step("configure" "${CMAKE_COMMAND}" -S "${CONSUMER}" -B "${work}" -G "${GENERATOR}" "-DCMAKE_PREFIX_PATH=${prefix}"
     "-DCMAKE_CXX_COMPILER=${COMPILER}" "-DCMAKE_BUILD_TYPE=${BUILD_TYPE}")
step("build" "${CMAKE_COMMAND}" --build "${work}")
step("run" "${work}/consumer")
# The same program with the flags of pkg-config.
find_program(PKG_CONFIG pkg-config)
if(PKG_CONFIG)
  file(GLOB_RECURSE pc "${prefix}/*/slipstream.pc")
  cmake_path(GET pc PARENT_PATH pc_dir)
  set(ENV{PKG_CONFIG_PATH} "${pc_dir}")
  execute_process(COMMAND "${PKG_CONFIG}" --cflags --libs slipstream OUTPUT_VARIABLE words RESULT_VARIABLE status
                  OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "pkg-config does not know slipstream")
  endif()
  separate_arguments(words UNIX_COMMAND "${words}")
  step("pkg-config: build" "${COMPILER}" -std=c++20 "${CONSUMER}/main.cpp" -o "${work}/consumer-pc" ${words})
  step("pkg-config: run" "${work}/consumer-pc")
endif()
foreach(file share/man/man1/slip.1 share/bash-completion/completions/slip share/zsh/site-functions/_slip
        share/doc/slipstream/README.md)
  if(EXISTS "${prefix}/bin/slip" AND NOT EXISTS "${prefix}/${file}")
    message(FATAL_ERROR "${file} is not installed")
  endif()
endforeach()
if(EXISTS "${prefix}/bin/slip")
  step("installed program" "${prefix}/bin/slip" --help)
endif()
