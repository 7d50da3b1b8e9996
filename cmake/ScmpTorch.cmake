# Imported targets for the torch wheel. Its own TorchConfig.cmake is a fatal error on machines without
# a CUDA toolkit, so the libraries are named here.
find_package(Python3 3.10 REQUIRED COMPONENTS Interpreter Development.Module)
execute_process(
  COMMAND "${Python3_EXECUTABLE}" -c
          "import torch; print(torch.utils.cmake_prefix_path, torch.__version__, torch.version.cuda or '', int(torch.compiled_with_cxx11_abi()), sep=';')"
  OUTPUT_VARIABLE _torch OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE _torch_result
  ERROR_VARIABLE _torch_error)
if(NOT _torch_result EQUAL 0)
  message(FATAL_ERROR "scmp_kernels needs torch==2.11.* in ${Python3_EXECUTABLE}: ${_torch_error}")
endif()
list(GET _torch 0 _torch_prefix)
list(GET _torch 1 SCMP_TORCH_VERSION)
list(GET _torch 2 SCMP_TORCH_CUDA)
list(GET _torch 3 _torch_abi)
if(NOT SCMP_TORCH_VERSION MATCHES "^2\\.11\\.")
  message(FATAL_ERROR "scmp_kernels needs torch==2.11.*, found ${SCMP_TORCH_VERSION}")
endif()
get_filename_component(SCMP_TORCH_ROOT "${_torch_prefix}/../.." ABSOLUTE)
message(STATUS "torch ${SCMP_TORCH_VERSION} (CUDA '${SCMP_TORCH_CUDA}') in ${SCMP_TORCH_ROOT}")

add_library(scmp_torch INTERFACE)
target_include_directories(scmp_torch SYSTEM INTERFACE
  "${SCMP_TORCH_ROOT}/include" "${SCMP_TORCH_ROOT}/include/torch/csrc/api/include")
target_compile_definitions(scmp_torch INTERFACE _GLIBCXX_USE_CXX11_ABI=${_torch_abi})
target_link_directories(scmp_torch INTERFACE "${SCMP_TORCH_ROOT}/lib")
target_link_libraries(scmp_torch INTERFACE c10 torch_cpu torch)
