# The options of the build, and the flags of all targets.

option(SLIP_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(SLIP_BUILD_EXAMPLES "Build the examples" ${PROJECT_IS_TOP_LEVEL})
option(SLIP_BUILD_BENCH "Build the benchmarks" ${PROJECT_IS_TOP_LEVEL})
option(SLIP_WERROR "Treat warnings as errors" OFF)
set(SLIP_CUDA AUTO CACHE STRING "CUDA backend: AUTO (if nvcc is found), ON or OFF")
set(SLIP_SANITIZE none CACHE STRING "Sanitizer: none, address (with undefined) or thread")
set_property(CACHE SLIP_CUDA PROPERTY STRINGS AUTO ON OFF)
set_property(CACHE SLIP_SANITIZE PROPERTY STRINGS none address thread)

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
# No other library replaces our functions at load time, so calls may be inlined in position-independent code, too.
add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-fno-semantic-interposition>")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # g++ collects garbage first at 128 MiB of memory; from 256 MiB on, it needs 4 % less time, and not much more memory.
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-heapsize=262144>")
endif()
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

if(NOT CMAKE_BUILD_TYPE AND PROJECT_IS_TOP_LEVEL AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

# Warnings are enabled for our own targets only (slip_warnings), not for a project that adds this one as a subfolder.
add_library(slip_warnings INTERFACE)
set(cxx "$<COMPILE_LANGUAGE:CXX>")
set(cuda "$<COMPILE_LANGUAGE:CUDA>")
target_compile_options(slip_warnings INTERFACE
  "$<${cxx}:-Wall;-Wextra;-Wpedantic;-Wshadow;-Wnon-virtual-dtor;-Woverloaded-virtual>"
  "$<${cuda}:-Xcompiler=-Wall,-Wextra>")
if(SLIP_WERROR)
  # The use of a deprecated name is a warning, not an error.
  target_compile_options(slip_warnings INTERFACE "$<${cxx}:-Werror;-Wno-error=deprecated-declarations>"
                         "$<${cuda}:-Werror=all-warnings>")
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  target_compile_options(slip_warnings INTERFACE "$<${cxx}:-Wthread-safety;-Wno-unknown-warning-option>")
  if(SLIP_UNITY)   # clang, unlike g++, warns about a local name that hides one of another source in the same unit
    target_compile_options(slip_warnings INTERFACE "$<${cxx}:-Wno-shadow>")
  endif()
endif()

# A sanitizer applies to all targets that are linked together. ASAN_OPTIONS=detect_stack_use_after_return=1 is not used: on
# aarch64, g++ 12 does not free the frames of that check, so after 16384 calls it finds nothing and each call takes 1-9 us.
if(SLIP_SANITIZE STREQUAL "address")
  # The address sanitizer finds what these checks find, except accesses that are not aligned. With them g++ takes twice
  # as long.
  set(SLIP_SANITIZE_FLAGS -fsanitize=address,undefined -fno-sanitize=null,alignment,vptr,object-size
      -fno-sanitize-recover=all -fno-omit-frame-pointer)
elseif(SLIP_SANITIZE STREQUAL "thread")
  set(SLIP_SANITIZE_FLAGS -fsanitize=thread -fno-omit-frame-pointer)
elseif(SLIP_SANITIZE STREQUAL "none")
  set(SLIP_SANITIZE_FLAGS)
else()
  message(FATAL_ERROR "SLIP_SANITIZE is '${SLIP_SANITIZE}'; it must be none, address or thread")
endif()
if(SLIP_SANITIZE_FLAGS)
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")   # g++ defines this macro itself
    string(TOUPPER "${SLIP_SANITIZE}" sanitizer)
    add_compile_definitions("__SANITIZE_${sanitizer}__=1")
  endif()
  add_compile_options("$<${cxx}:${SLIP_SANITIZE_FLAGS}>")
  add_link_options(${SLIP_SANITIZE_FLAGS})
  # For the tests and the program, which are half of the code and call the library. Without checks of undefined behaviour
  # they compile in two thirds of the time; also without optimisation, in half of the time.
  add_library(slip_quickly INTERFACE)
  # Without the thread-safety analysis of clang: some tests acquire a lock in one function and release it in another.
  target_compile_options(slip_quickly INTERFACE "$<${cxx}:-O0;-Wno-thread-safety>")
  if(SLIP_SANITIZE STREQUAL "address")
    target_compile_options(slip_quickly INTERFACE "$<${cxx}:-fno-sanitize=undefined>")
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # In instrumented code, g++ gives false warnings of uninitialised values and of accesses out of bounds. With
    # -fsanitize=thread it warns about every atomic_thread_fence, which that sanitizer does not model: not an error.
    target_compile_options(slip_warnings INTERFACE
      "$<${cxx}:-Wno-maybe-uninitialized;-Wno-array-bounds;-Wno-stringop-overflow;-Wno-restrict;-Wno-error=tsan>")
  endif()
endif()
