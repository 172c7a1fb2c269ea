# CPack runs this on the installation that it is about to pack. An archive gets the libraries of Debian's packages, too.
if(NOT CPACK_GENERATOR STREQUAL "DEB")
  execute_process(COMMAND "${CMAKE_CURRENT_LIST_DIR}/../python/wheel/complete_installation" "${CPACK_TEMPORARY_INSTALL_DIRECTORY}"
    COMMAND_ERROR_IS_FATAL ANY)
endif()
