# CPack reads this for each package. A Debian package depends on the packages of the libraries that our own files link.
#
# CPack can derive these dependencies itself, from all 9,600 installed files. That takes half an hour, and LibTorch needs
# nothing else.
if(CPACK_GENERATOR STREQUAL "DEB")
  set(_work "${CPACK_NARROWCAST_BUILD}/CMakeFiles/dependencies")
  file(WRITE "${_work}/debian/control" "Source: narrowcast\n")  # dpkg-shlibdeps requires it.
  file(GLOB _files "${CPACK_NARROWCAST_BUILD}/bin/narrowcast-*" "${CPACK_NARROWCAST_BUILD}/lib/libnarrowcast_*.so")
  execute_process(
    COMMAND dpkg-shlibdeps -O --ignore-missing-info "-l${CPACK_NARROWCAST_BUILD}/lib" "-l${CPACK_NARROWCAST_LIBTORCH}/lib" ${_files}
    WORKING_DIRECTORY "${_work}" OUTPUT_VARIABLE _depends ERROR_VARIABLE _log RESULT_VARIABLE _result)
  if(NOT _result EQUAL 0)
    message(FATAL_ERROR "dpkg-shlibdeps (package dpkg-dev): ${_result}\n${_log}")
  endif()
  string(STRIP "${_depends}" _depends)
  string(REPLACE "shlibs:Depends=" "" CPACK_DEBIAN_PACKAGE_DEPENDS "${_depends}")
endif()
