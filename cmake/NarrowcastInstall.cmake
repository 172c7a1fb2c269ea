# `cmake --install`: libraries, programs, public headers and the package that
# `find_package(narrowcast)` reads.
include(CMakePackageConfigHelpers)

set(_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/narrowcast")
get_property(_targets GLOBAL PROPERTY NARROWCAST_INSTALLED_TARGETS)
install(TARGETS ${_targets} EXPORT narrowcast-targets)
install(EXPORT narrowcast-targets NAMESPACE narrowcast:: DESTINATION ${_package_dir})
foreach(folder IN LISTS NARROWCAST_PUBLIC_HEADERS)
  install(DIRECTORY "${folder}/narrowcast" DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
endforeach()
configure_package_config_file(cmake/narrowcast-config.cmake.in narrowcast-config.cmake
  INSTALL_DESTINATION ${_package_dir})
write_basic_package_version_file(narrowcast-config-version.cmake COMPATIBILITY SameMinorVersion)
# For builds without CMake: `pkg-config narrowcast-ddp`.
file(RELATIVE_PATH _prefix_from_pc "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
configure_file(cmake/narrowcast-ddp.pc.in narrowcast-ddp.pc @ONLY)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/narrowcast-ddp.pc" DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(FILES third_party/FindLibTorch.cmake
  "${CMAKE_CURRENT_BINARY_DIR}/narrowcast-config.cmake"
  "${CMAKE_CURRENT_BINARY_DIR}/narrowcast-config-version.cmake"
  DESTINATION ${_package_dir})

# The text that narrowcast-train trains on when it is given none: our own.
install(FILES README.md DESTINATION ${CMAKE_INSTALL_DATADIR}/narrowcast/text)
install(DIRECTORY docs ops hooks models trainer
  DESTINATION ${CMAKE_INSTALL_DATADIR}/narrowcast/text
  FILES_MATCHING PATTERN "*.md" PATTERN "*.h" PATTERN "*.cpp")
