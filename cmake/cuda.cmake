# Whether CUDA code is compiled: SLIP_CUDA_FOUND.
#
# The path of a file shows whether it is CUDA code: a *.cu file, or a path with a part called cuda or cuda_<something>
# (src/backend/cuda/..., src/nccl/cuda_calls.cpp). scripts/check_layers.py allows CUDA headers only in such files, so
# SLIP_CUDA has no effect on others.
set(SLIP_CUDA_PATH "/cuda(_[a-z0-9_]+)?[/.]|\\.cu$")
set(SLIP_CUDA_FOUND OFF)

if(NOT SLIP_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "SLIP_CUDA is '${SLIP_CUDA}'; it must be AUTO, ON or OFF")
endif()
file(GLOB slip_cuda_backend CONFIGURE_DEPENDS
     "${PROJECT_SOURCE_DIR}/src/backend/cuda/*.cu" "${PROJECT_SOURCE_DIR}/src/backend/cuda/*.cpp")

if(SLIP_CUDA STREQUAL "OFF")
  set(slip_cuda_why "switched off")
elseif(NOT slip_cuda_backend)
  set(slip_cuda_why "src/backend/cuda has no sources")
else()
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    find_program(SLIP_NVCC nvcc HINTS "$ENV{CUDA_HOME}/bin" "$ENV{CUDA_PATH}/bin" /usr/local/cuda/bin)
    if(SLIP_NVCC)
      set(CMAKE_CUDA_COMPILER "${SLIP_NVCC}" CACHE FILEPATH "CUDA compiler")
    endif()
  endif()
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})   # CMake itself reads the variable
    # Compile for the GPUs of this machine. If it has none, compile to PTX, which the driver of any newer GPU compiles at
    # first use: machine code for several GPUs would take minutes. `make package` compiles that.
    execute_process(COMMAND nvidia-smi -L RESULT_VARIABLE slip_no_gpu OUTPUT_VARIABLE slip_gpus ERROR_QUIET)
    set(slip_architectures 80-virtual)
    if(slip_no_gpu EQUAL 0 AND slip_gpus MATCHES "GPU 0")
      set(slip_architectures native)
    endif()
    set(CMAKE_CUDA_ARCHITECTURES ${slip_architectures} CACHE STRING "GPU architectures")
  endif()
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)   # CMake 3.25 does not know that nvcc supports C++20
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
    endif()
    find_package(CUDAToolkit QUIET)
  endif()
  if(CMAKE_CUDA_COMPILER AND CUDAToolkit_FOUND AND CUDAToolkit_VERSION VERSION_LESS 12.5)
    # 12.5 is the first version with cudaGetDriverEntryPointByVersion.
    set(slip_cuda_why "CUDA ${CUDAToolkit_VERSION} is older than 12.5")
  elseif(CMAKE_CUDA_COMPILER AND CUDAToolkit_FOUND)
    set(SLIP_CUDA_FOUND ON)
    set(slip_cuda_why "CUDA ${CUDAToolkit_VERSION}, ${CMAKE_CUDA_COMPILER}")
  else()
    set(slip_cuda_why "no CUDA compiler or toolkit found")
  endif()
  if(SLIP_CUDA STREQUAL "ON" AND NOT SLIP_CUDA_FOUND)
    message(FATAL_ERROR "SLIP_CUDA=ON, but ${slip_cuda_why}; looked on PATH, in CUDA_HOME and /usr/local/cuda")
  endif()
endif()
message(STATUS "CUDA backend: ${SLIP_CUDA_FOUND} (${slip_cuda_why})")
