# Makes each case of a gtest program that needs a GPU a test of ctest, `<name>.<case>`, with the label "gpu". Before
# ctest runs tests, it includes this file: only the program can list its cases, with their parameters. The program is
# queried once after each build.
#
# Variables: name, program, filter (a GoogleTest filter for these cases), case_runner (tests/gpu/case with its first
# argument), all_skipped, labels, environment.
if(filter STREQUAL "")
  return()
endif()
if(NOT EXISTS "${program}")
  add_test(${name}.gpu_cases_not_built "${program}")
  set_tests_properties(${name}.gpu_cases_not_built PROPERTIES LABELS "${labels}")
  return()
endif()

string(REGEX REPLACE "\\.cmake$" "_tests.cmake" tests "${CMAKE_PARENT_LIST_FILE}")
if("${program}" IS_NEWER_THAN "${tests}" OR "${CMAKE_PARENT_LIST_FILE}" IS_NEWER_THAN "${tests}" OR
   "${CMAKE_CURRENT_LIST_FILE}" IS_NEWER_THAN "${tests}")
  execute_process(COMMAND "${program}" --gtest_list_tests "--gtest_filter=${filter}" OUTPUT_VARIABLE listed
    ERROR_VARIABLE error RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${program} --gtest_list_tests: ${result}: ${error}")
  endif()
  # Lines are `suite.  # type`, followed by `  case  # parameter`; a parameter may have any characters.
  string(REGEX REPLACE "[][;]" "_" listed "${listed}")
  string(REPLACE "\n" ";" lines "${listed}")
  set(text)
  foreach(line IN LISTS lines)
    string(REGEX REPLACE " *#.*" "" line "${line}")
    if(line MATCHES "^  (.*)")
      set(case "${suite}${CMAKE_MATCH_1}")
      string(APPEND text "add_test([==[${name}.${case}]==] \${case_runner} \${program} [==[--gtest_filter=${case}]==])\n"
        "set_tests_properties([==[${name}.${case}]==] PROPERTIES LABELS \"\${labels}\" ENVIRONMENT \"\${environment}\" \${properties})\n")
    else()
      set(suite "${line}")
    endif()
  endforeach()
  file(WRITE "${tests}" "${text}")
endif()
# RESOURCE_LOCK: processes take turns on the GPU; each takes some time.
set(properties TIMEOUT 600 RESOURCE_LOCK gpu SKIP_RETURN_CODE 77 FAIL_REGULAR_EXPRESSION "Running 0 tests"
  SKIP_REGULAR_EXPRESSION "${all_skipped}")
include("${tests}")
