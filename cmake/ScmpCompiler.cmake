# Compiler flags that exactness depends on, and ccache where it is there.
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
set(CMAKE_CXX_STANDARD 17)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

find_program(SCMP_CCACHE ccache)
if(SCMP_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${SCMP_CCACHE}")
  set(CMAKE_CUDA_COMPILER_LAUNCHER "${SCMP_CCACHE}")
endif()

# No contraction: where two roundings are specified, two are made. -fno-trapping-math and
# -fno-math-errno change no value; they let rint and fma become single instructions.
set(SCMP_CXX_FLAGS -ffp-contract=off -fno-trapping-math -fno-math-errno -Wall -Wextra)
if(SCMP_SANITIZE)
  list(APPEND SCMP_CXX_FLAGS -fsanitize=${SCMP_SANITIZE} -fno-sanitize-recover=all
       -fno-omit-frame-pointer -g)
  add_link_options(-fsanitize=${SCMP_SANITIZE})
endif()

set(SCMP_X86 OFF)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  set(SCMP_X86 ON)
endif()
set(SCMP_ISA_FLAGS_scalar "")
set(SCMP_ISA_FLAGS_avx2 -mavx2 -mfma -mpopcnt -mbmi2)
set(SCMP_ISA_FLAGS_avx512 -mavx2 -mfma -mpopcnt -mbmi2 -mavx512f -mavx512bw -mavx512vl -mavx512dq
    -mavx512vbmi -mavx512vpopcntdq -mprefer-vector-width=512)
