# Resolves NARROWCAST_CUDA=AUTO and sets up the CUDA toolkit of a CUDA build.
include(CheckLanguage)

# CMake searches nvcc in PATH only; toolkits install themselves elsewhere.
if(NOT NARROWCAST_CUDA STREQUAL "OFF" AND NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(NARROWCAST_NVCC nvcc HINTS ENV CUDA_PATH ENV CUDA_HOME PATHS /usr/local/cuda PATH_SUFFIXES bin)
  mark_as_advanced(NARROWCAST_NVCC)
  if(NARROWCAST_NVCC)
    set(CMAKE_CUDA_COMPILER "${NARROWCAST_NVCC}")
  endif()
endif()

set(NARROWCAST_GPU_DRIVER /dev/nvidiactl)  # Created by NVIDIA's driver.
if(NARROWCAST_CUDA STREQUAL "AUTO")
  set(NARROWCAST_CUDA OFF)
  execute_process(COMMAND "${PROJECT_SOURCE_DIR}/third_party/cuda_usable"
    RESULT_VARIABLE _no_cuda OUTPUT_VARIABLE _found OUTPUT_STRIP_TRAILING_WHITESPACE)
  narrowcast_libtorch_folder(_libtorch cuda)
  if(NOT _no_cuda AND NOT EXISTS "${_libtorch}/lib/libtorch_cuda.so")
    string(APPEND _found ", but ${_libtorch} has no libtorch_cuda.so: third_party/setup --cuda gets it")
  elseif(NOT _no_cuda)
    check_language(CUDA)
    if(CMAKE_CUDA_COMPILER)
      set(NARROWCAST_CUDA ON)
    else()
      string(APPEND _found ", but nvcc compiles nothing here: third_party/setup --cpu gets LibTorch for CPUs")
    endif()
  endif()
  set(_found " (${_found})")
endif()
message(STATUS "narrowcast: CUDA build ${NARROWCAST_CUDA}${_found}")

if(NARROWCAST_CUDA)
  set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)  # The same runtime as LibTorch's.
  set(CMAKE_CUDA_STANDARD 17)             # CMake 3.25 has no CUDA20 for nvcc.
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  set(CMAKE_CUDA_EXTENSIONS OFF)
  set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
  # Machine code for A100, H100, B200 and RTX 50 and related GPUs. The driver compiles the PTX in the first step, for
  # GPUs between them and for later ones. Older GPUs are refused (trainer/ddp/backends/nccl_environment.cpp).
  set(CMAKE_CUDA_ARCHITECTURES "80-real;90-real;100-real;120-real;90-virtual" CACHE STRING "GPUs to compile for")
  enable_language(CUDA)
  find_package(CUDAToolkit 13.0 REQUIRED)
endif()
