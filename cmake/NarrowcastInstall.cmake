# `cmake --install`: libraries, programs, public headers and the package for `find_package(narrowcast)`.
include(CMakePackageConfigHelpers)

# All installed targets, without the tests: `cmake --build --preset release --target narrowcast`.
get_property(_programs GLOBAL PROPERTY NARROWCAST_PROGRAMS)
get_property(_targets GLOBAL PROPERTY NARROWCAST_INSTALLED_TARGETS)
add_custom_target(narrowcast DEPENDS ${_programs} ${_targets})

set(_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/narrowcast")
install(TARGETS ${_targets} EXPORT narrowcast-targets)
install(EXPORT narrowcast-targets NAMESPACE narrowcast:: DESTINATION ${_package_dir})
foreach(folder IN LISTS NARROWCAST_PUBLIC_HEADERS)
  install(DIRECTORY "${folder}/narrowcast" DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
endforeach()
# The whole LibTorch, including its headers and licences: builds against an installation need nothing else.
if(NARROWCAST_INSTALL_LIBTORCH)
  cmake_path(GET LibTorch_PREFIX PARENT_PATH _libtorch)
  install(CODE "message(STATUS \"LibTorch: copied from ${_libtorch} to \${CMAKE_INSTALL_PREFIX}/${NARROWCAST_LIBTORCH_INSTALL_DIR}\")")
  install(DIRECTORY "${_libtorch}/" DESTINATION ${NARROWCAST_LIBTORCH_INSTALL_DIR} USE_SOURCE_PERMISSIONS MESSAGE_NEVER)
  cmake_path(GET LibTorch_PREFIX FILENAME _torch)
  set(_installed_libtorch "${NARROWCAST_LIBTORCH_INSTALL_DIR}/${_torch}")
else()
  install(CODE "message(STATUS \"LibTorch: used where it is, in ${LibTorch_PREFIX}\")")
  set(_installed_libtorch "${LibTorch_PREFIX}")
endif()
configure_package_config_file(cmake/narrowcast-config.cmake.in narrowcast-config.cmake
  INSTALL_DESTINATION ${_package_dir} PATH_VARS _installed_libtorch)
write_basic_package_version_file(narrowcast-config-version.cmake COMPATIBILITY SameMinorVersion)
# For builds without CMake: `pkg-config narrowcast-ddp`.
file(RELATIVE_PATH _prefix_from_pc "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
cmake_path(ABSOLUTE_PATH _installed_libtorch BASE_DIRECTORY "\${prefix}" OUTPUT_VARIABLE _libtorch_from_pc)
configure_file(cmake/narrowcast-ddp.pc.in narrowcast-ddp.pc @ONLY)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/narrowcast-ddp.pc" DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(FILES third_party/FindLibTorch.cmake third_party/LibTorchFolder.cmake
  "${CMAKE_CURRENT_BINARY_DIR}/narrowcast-config.cmake"
  "${CMAKE_CURRENT_BINARY_DIR}/narrowcast-config-version.cmake"
  DESTINATION ${_package_dir})

# The documents that headers refer to as docs/....
install(DIRECTORY docs/ DESTINATION ${CMAKE_INSTALL_DOCDIR}/docs)
install(FILES README.md LICENSE CHANGELOG.md COMPATIBILITY.md SECURITY.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
# The default text of narrowcast-train.
install(FILES data/README.md data/tinyshakespeare.txt DESTINATION ${CMAKE_INSTALL_DATADIR}/narrowcast/data)

# The installation as one file: an archive that can be unpacked anywhere and needs no packages, or with `cpack -G DEB` a
# Debian package for /usr, which depends on the packages of the libraries that it links.
set(CPACK_GENERATOR TGZ)
set(CPACK_PACKAGE_VENDOR "the narrowcast developers")
set(CPACK_RESOURCE_FILE_LICENSE "${PROJECT_SOURCE_DIR}/LICENSE")
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_MAINTAINER "the narrowcast developers")
set(CPACK_DEBIAN_COMPRESSION_TYPE zstd)
set(CPACK_PROJECT_CONFIG_FILE "${PROJECT_SOURCE_DIR}/cmake/NarrowcastPackage.cmake")
set(CPACK_PRE_BUILD_SCRIPTS "${PROJECT_SOURCE_DIR}/cmake/NarrowcastArchive.cmake")
set(CPACK_NARROWCAST_BUILD "${PROJECT_BINARY_DIR}")
set(CPACK_NARROWCAST_LIBTORCH "${LibTorch_PREFIX}")
include(CPack)
