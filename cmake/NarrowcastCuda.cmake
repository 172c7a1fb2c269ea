# Resolves NARROWCAST_CUDA=AUTO and sets up the CUDA toolkit of a CUDA build.
include(CheckLanguage)

if(NARROWCAST_CUDA STREQUAL "AUTO")
  set(NARROWCAST_CUDA OFF)
  if(EXISTS /dev/nvidiactl)
    check_language(CUDA)
    if(CMAKE_CUDA_COMPILER)
      set(NARROWCAST_CUDA ON)
    endif()
  endif()
endif()
message(STATUS "narrowcast: CUDA build ${NARROWCAST_CUDA}")

if(NARROWCAST_CUDA)
  set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)  # The one runtime that LibTorch uses.
  set(CMAKE_CUDA_STANDARD 17)             # CMake 3.25 knows no CUDA20 for nvcc.
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  find_package(CUDAToolkit 13.0 REQUIRED)
endif()
