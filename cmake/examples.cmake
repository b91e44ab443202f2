# Every examples/NN_name.cpp is one program that uses the public headers only. ctest runs it. NN_name.cu needs CUDA; its
# program ends with status 77 if there is no GPU.
file(GLOB slip_examples CONFIGURE_DEPENDS
     "${PROJECT_SOURCE_DIR}/examples/[0-9][0-9]_*.cpp" "${PROJECT_SOURCE_DIR}/examples/[0-9][0-9]_*.cu")
slip_drop_cuda(slip_examples)
set(slip_example_names)
foreach(source IN LISTS slip_examples)
  cmake_path(GET source STEM name)
  list(APPEND slip_example_names ${name})
  add_executable(example_${name} "${source}")
  set_target_properties(example_${name} PROPERTIES
    OUTPUT_NAME ${name} RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/examples")
  target_link_libraries(example_${name} PRIVATE slip::slip slip_warnings)
  if(source MATCHES "\\.cu$")
    target_link_libraries(example_${name} PRIVATE CUDA::cudart_static)
  endif()
endforeach()
