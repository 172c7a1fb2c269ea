# Where programs and libraries look for the libraries that they link: the same places in the build tree and once installed.
#
# CMake would otherwise pad the RUNPATH of the build tree with empty elements, to make room for the installed one, and the
# loader takes an empty element for the current folder: whoever could write there would choose the code that runs.
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
set(CMAKE_INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}" "$ORIGIN")

# LibTorch lies beside our libraries (cmake/NarrowcastInstall.cmake), so that an installation can be moved and is whole for
# every user; in the build tree it is a link.
set(NARROWCAST_LIBTORCH_INSTALL_DIR "${CMAKE_INSTALL_LIBDIR}/narrowcast/libtorch")
if(NARROWCAST_INSTALL_LIBTORCH)
  cmake_path(GET LibTorch_PREFIX FILENAME _torch)  # NVIDIA's libraries lie beside it, where it looks for them.
  list(APPEND CMAKE_INSTALL_RPATH "$ORIGIN/../${NARROWCAST_LIBTORCH_INSTALL_DIR}/${_torch}/lib"
    "$ORIGIN/narrowcast/libtorch/${_torch}/lib")
  cmake_path(GET LibTorch_PREFIX PARENT_PATH _libtorch)
  file(MAKE_DIRECTORY "${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/narrowcast")
  file(CREATE_LINK "${_libtorch}" "${PROJECT_BINARY_DIR}/${NARROWCAST_LIBTORCH_INSTALL_DIR}" SYMBOLIC)
else()
  list(APPEND CMAKE_INSTALL_RPATH "${LibTorch_PREFIX}/lib")
endif()
