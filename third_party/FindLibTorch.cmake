# Finds LibTorch >= LibTorch_FIND_VERSION as a plain C++ library.
#
#   -DNARROWCAST_LIBTORCH=DIR  an unpacked LibTorch archive, or the torch folder of a Python installation
#   otherwise                  the LibTorch that third_party/setup unpacked below the user's cache folder, in the
#                              requested version, or in that of -DNARROWCAST_LIBTORCH_VERSION=VERSION
#
# Targets: libtorch::headers, libtorch::c10, libtorch::cpu and, if the copy has them, libtorch::c10_cuda and
# libtorch::cuda. LibTorch's own package file is not used: it refuses C++20 and needs a CUDA toolkit even for a CPU
# build.
include(FindPackageHandleStandardArgs)
include("${CMAKE_CURRENT_LIST_DIR}/LibTorchFolder.cmake")

set(_lt_variant cpu)
if(NARROWCAST_CUDA)
  set(_lt_variant cuda)
endif()
narrowcast_libtorch_folder(_lt_root ${_lt_variant})

set(LibTorch_PREFIX "${_lt_root}")
find_path(LibTorch_INCLUDE_DIR torch/library.h HINTS "${_lt_root}/include" NO_DEFAULT_PATH)
foreach(_lib IN ITEMS c10 torch_cpu c10_cuda torch_cuda)
  find_library(LibTorch_${_lib}_LIBRARY ${_lib} HINTS "${_lt_root}/lib" NO_DEFAULT_PATH)
endforeach()

foreach(_header IN ITEMS torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
  if(LibTorch_INCLUDE_DIR AND EXISTS "${LibTorch_INCLUDE_DIR}/${_header}")
    file(READ "${LibTorch_INCLUDE_DIR}/${_header}" _lt_text)
    if(_lt_text MATCHES "TORCH_VERSION_MAJOR ([0-9]+).*TORCH_VERSION_MINOR ([0-9]+).*TORCH_VERSION_PATCH ([0-9]+)")
      set(LibTorch_VERSION "${CMAKE_MATCH_1}.${CMAKE_MATCH_2}.${CMAKE_MATCH_3}")
      break()
    endif()
  endif()
endforeach()

find_package_handle_standard_args(LibTorch
  REQUIRED_VARS LibTorch_torch_cpu_LIBRARY LibTorch_c10_LIBRARY LibTorch_INCLUDE_DIR
  VERSION_VAR LibTorch_VERSION
  REASON_FAILURE_MESSAGE "looked in ${_lt_root}: run third_party/setup, or pass -DNARROWCAST_LIBTORCH=DIR")
mark_as_advanced(LibTorch_INCLUDE_DIR LibTorch_c10_LIBRARY LibTorch_torch_cpu_LIBRARY
  LibTorch_c10_cuda_LIBRARY LibTorch_torch_cuda_LIBRARY)

if(LibTorch_FOUND AND NOT TARGET libtorch::cpu)
  find_package(Threads REQUIRED)
  add_library(libtorch::headers INTERFACE IMPORTED)  # Imported, so that the compiler reports no warnings in it.
  set_target_properties(libtorch::headers PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${LibTorch_INCLUDE_DIR};${LibTorch_INCLUDE_DIR}/torch/csrc/api/include"
    INTERFACE_COMPILE_DEFINITIONS "USE_DISTRIBUTED;USE_C10D_GLOO"
    INTERFACE_COMPILE_FEATURES cxx_std_17)

  # The NVIDIA libraries of a wheel lie beside it. LibTorch's RPATH finds them at run time; the linker needs their
  # folders.
  file(GLOB _lt_nvidia_dirs LIST_DIRECTORIES true "${_lt_root}/../nvidia/*/lib")
  list(TRANSFORM _lt_nvidia_dirs PREPEND "LINKER:-rpath-link,")

  macro(_lt_import name file links)
    add_library(libtorch::${name} SHARED IMPORTED)
    set_target_properties(libtorch::${name} PROPERTIES
      IMPORTED_LOCATION "${LibTorch_${file}_LIBRARY}"
      INTERFACE_LINK_LIBRARIES "${links}")
  endmacro()
  _lt_import(c10 c10 "libtorch::headers;Threads::Threads")
  # at::parallel_for is a template: its callers need the OpenMP runtime, and it must be LibTorch's.
  file(GLOB _lt_openmp "${_lt_root}/lib/libgomp*.so*")
  _lt_import(cpu torch_cpu "libtorch::c10;${_lt_openmp}")
  set_property(TARGET libtorch::cpu APPEND PROPERTY INTERFACE_LINK_OPTIONS "${_lt_nvidia_dirs}")
  if(LibTorch_torch_cuda_LIBRARY AND LibTorch_c10_cuda_LIBRARY)
    _lt_import(c10_cuda c10_cuda "libtorch::c10")
    _lt_import(torch_cuda torch_cuda "libtorch::c10_cuda;libtorch::cpu")
    # LibTorch's CUDA kernels register themselves when loaded. Nothing refers to them, so --as-needed would silently
    # drop the library.
    add_library(libtorch::cuda INTERFACE IMPORTED)
    set_target_properties(libtorch::cuda PROPERTIES
      INTERFACE_COMPILE_DEFINITIONS USE_C10D_NCCL
      INTERFACE_LINK_LIBRARIES
        "-Wl,--push-state,--no-as-needed,$<TARGET_FILE:libtorch::torch_cuda>,--pop-state;libtorch::c10_cuda;libtorch::cpu")
    # LibTorch's NCCL header includes nccl.h. A wheel has it beside it, in the version that LibTorch was built with. A
    # toolkit or the system may have another version, or none.
    find_path(LibTorch_NCCL_INCLUDE_DIR nccl.h PATHS "${_lt_root}/../nvidia/nccl/include" NO_DEFAULT_PATH)
    find_path(LibTorch_NCCL_INCLUDE_DIR nccl.h)
    mark_as_advanced(LibTorch_NCCL_INCLUDE_DIR)
    if(NOT LibTorch_NCCL_INCLUDE_DIR)
      message(FATAL_ERROR "nccl.h is neither in ${_lt_root}/../nvidia/nccl/include nor where the compiler looks")
    endif()
    target_include_directories(libtorch::headers SYSTEM BEFORE INTERFACE "${LibTorch_NCCL_INCLUDE_DIR}")
  endif()
endif()
