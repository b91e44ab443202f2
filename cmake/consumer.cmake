# Run by ctest (cmake -P): installs into BUILD_DIR/prefix, then configures, builds and runs tests/consumer
# against it, as a user of the package would.
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
     "-DCMAKE_CXX_COMPILER=${COMPILER}" "-DCMAKE_CXX_FLAGS=${FLAGS}" "-DCMAKE_BUILD_TYPE=${BUILD_TYPE}")
step("build" "${CMAKE_COMMAND}" --build "${work}")
step("run" "${work}/consumer")
if(EXISTS "${prefix}/bin/slip")
  step("installed program" "${prefix}/bin/slip" --help)
endif()
