# The folders in which programs and libraries search for the libraries that they link: the same in the build tree and
# after installation.
#
# By default CMake would pad the RUNPATH of the build tree with empty elements, to reserve space for the installed one.
# The loader takes an empty element for the current folder, so that whoever can write there could choose the code that
# runs.
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
set(CMAKE_INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}" "$ORIGIN")

# LibTorch is installed beside our libraries (cmake/NarrowcastInstall.cmake), so that an installation can be moved and
# is complete for every user. In the build tree it is a link.
set(NARROWCAST_LIBTORCH_INSTALL_DIR "${CMAKE_INSTALL_LIBDIR}/narrowcast/libtorch")
if(NARROWCAST_INSTALL_LIBTORCH)
  cmake_path(GET LibTorch_PREFIX FILENAME _torch)  # LibTorch searches NVIDIA's libraries beside it.
  list(APPEND CMAKE_INSTALL_RPATH "$ORIGIN/../${NARROWCAST_LIBTORCH_INSTALL_DIR}/${_torch}/lib"
    "$ORIGIN/narrowcast/libtorch/${_torch}/lib")
  cmake_path(GET LibTorch_PREFIX PARENT_PATH _libtorch)
  file(MAKE_DIRECTORY "${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/narrowcast")
  file(CREATE_LINK "${_libtorch}" "${PROJECT_BINARY_DIR}/${NARROWCAST_LIBTORCH_INSTALL_DIR}" SYMBOLIC)
else()
  list(APPEND CMAKE_INSTALL_RPATH "${LibTorch_PREFIX}/lib")
endif()
