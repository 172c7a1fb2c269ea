# Target `docs`: the site of the documents in docs/site of the build folder, with the C++ reference in reference/cpp. A
# warning of Doxygen or MkDocs is an error, and so is a dead link. Without the programs of `third_party/setup --docs` the
# target prints which are missing, and makes nothing.
find_package(Doxygen QUIET)
find_program(NARROWCAST_MKDOCS mkdocs)
set(_missing "")
if(NOT DOXYGEN_FOUND)
  list(APPEND _missing doxygen)
endif()
if(NARROWCAST_MKDOCS)
  execute_process(COMMAND "${NARROWCAST_MKDOCS}" build --help OUTPUT_VARIABLE _help ERROR_QUIET)  # It lists the themes.
  if(NOT _help MATCHES "material")
    list(APPEND _missing mkdocs-material)
  endif()
else()
  list(APPEND _missing mkdocs mkdocs-material)
endif()
if(_missing)
  list(JOIN _missing ", " _missing)
  add_custom_target(docs COMMAND "${CMAKE_COMMAND}" -E echo
    "docs: skipped, because packages are missing (${_missing}): run third_party/setup --docs, then configure again" VERBATIM)
  return()
endif()
set(site "${PROJECT_BINARY_DIR}/docs/site")
set(DOXYGEN_PROJECT_BRIEF "C++ interface")
set(DOXYGEN_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/docs/doxygen")
set(DOXYGEN_INPUT_FILTER "${PROJECT_SOURCE_DIR}/cmake/docs/doxygen_filter")
set(DOXYGEN_PREDEFINED "NARROWCAST_EXPORT=" "TORCH_ARG(T,name)=T name" "TORCH_MODULE(name)=class name")
set(DOXYGEN_WARN_AS_ERROR FAIL_ON_WARNINGS)
foreach(option IN ITEMS EXTRACT_ALL EXTRACT_STATIC JAVADOC_AUTOBRIEF MACRO_EXPANSION EXPAND_ONLY_PREDEF QUIET)
  set(DOXYGEN_${option} YES)
endforeach()
foreach(option IN ITEMS FULL_PATH_NAMES AUTOLINK_SUPPORT GENERATE_LATEX HAVE_DOT WARN_IF_UNDOCUMENTED WARN_IF_INCOMPLETE_DOC)
  set(DOXYGEN_${option} NO)
endforeach()
list(TRANSFORM NARROWCAST_PUBLIC_HEADERS APPEND "/narrowcast" OUTPUT_VARIABLE folders)
doxygen_add_docs(cpp_reference ${folders})
add_custom_target(docs
  COMMAND "${NARROWCAST_MKDOCS}" build --quiet --strict --clean --site-dir "${site}"
  COMMAND "${CMAKE_COMMAND}" -E copy_directory "${DOXYGEN_OUTPUT_DIRECTORY}/html" "${site}/reference/cpp"
  COMMAND "${CMAKE_COMMAND}" -E echo "docs: ${site}/index.html"
  WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}" VERBATIM)
add_dependencies(docs cpp_reference)
