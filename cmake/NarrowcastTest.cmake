# How the gtest programs are made.

# In each of them, compiled once.
add_library(narrowcast_test_main OBJECT
  "${PROJECT_SOURCE_DIR}/tests/support/sanitizer_defaults.cpp" "${PROJECT_SOURCE_DIR}/tests/support/seed_each_test.cpp")
target_link_libraries(narrowcast_test_main PRIVATE narrowcast_options libtorch::cpu GTest::gtest)

# narrowcast_test(<name> [DEPS ...] [LABELS ...]): a gtest program bin/narrowcast_<name>_tests.
# The label "programs" marks tests that start programs of ours: they are not run under sanitizers, nor built by default.
function(narrowcast_test name)
  cmake_parse_arguments(arg "" "" "DEPS;LABELS" ${ARGN})
  set(target narrowcast_${name}_tests)
  add_executable(${target})
  set_property(TARGET ${target} PROPERTY NARROWCAST_LABELS "${arg_LABELS}")
  if(NARROWCAST_SANITIZE AND "programs" IN_LIST arg_LABELS)
    set_property(TARGET ${target} PROPERTY EXCLUDE_FROM_ALL ON)
  endif()
  target_link_libraries(${target} PRIVATE narrowcast_test_main narrowcast_options ${arg_DEPS} GTest::gmock GTest::gtest_main)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)  # A quarter less time to compile than -O3.
  narrowcast_use_pch(${target})
endfunction()

# The end of what a gtest program prints that skipped all of its tests: ctest says "Skipped", not "Passed".
set(NARROWCAST_ALL_SKIPPED "PASSED  \\] 0 tests.\n.  SKIPPED [^\n]*listed below:(\n.  SKIPPED [^\n]*)*\n*$")

# narrowcast_test_sources(<name> <file>...): adds files of the calling folder to narrowcast_test(<name>).
# ctest runs each test suite of it in one process (loading LibTorch for every case would take longer than the cases).
function(narrowcast_test_sources name)
  set(target narrowcast_${name}_tests)
  target_sources(${target} PRIVATE ${ARGN})
  get_target_property(labels ${target} NARROWCAST_LABELS)
  foreach(source IN LISTS ARGN)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${source})
    file(STRINGS ${source} suites REGEX "^(TEST|TEST_F|TEST_P|TYPED_TEST|TYPED_TEST_P)\\(")
    list(TRANSFORM suites REPLACE "^[A-Z_]+\\(([A-Za-z0-9_]+),.*" "\\1")
    list(REMOVE_DUPLICATES suites)
    foreach(suite IN LISTS suites)
      set(test "${name}.${suite}")
      add_test(NAME ${test} COMMAND ${target} "--gtest_filter=${suite}.*:*/${suite}.*:${suite}/*:*/${suite}/*")
      set_tests_properties(${test} PROPERTIES TIMEOUT 600 LABELS "${labels}"
        FAIL_REGULAR_EXPRESSION "Running 0 tests" SKIP_REGULAR_EXPRESSION "${NARROWCAST_ALL_SKIPPED}")
      if(suite MATCHES "Cuda")
        set_tests_properties(${test} PROPERTIES RESOURCE_LOCK gpu)  # Processes take turns on it, which takes time.
      endif()
    endforeach()
  endforeach()
endfunction()

# narrowcast_kernel_test_sources(<name> <file>...): the same for files that compile CUDA kernels for the CPU
# (tests/support/cuda_on_host). As in the kernels, arithmetic rounds after every operation, and memory is read and
# written as vectors of any type.
function(narrowcast_kernel_test_sources name)
  narrowcast_test_sources(${name} ${ARGN})
  set_property(SOURCE ${ARGN} TARGET_DIRECTORY narrowcast_${name}_tests
    APPEND PROPERTY COMPILE_OPTIONS -ffp-contract=off -fno-strict-aliasing -Wno-unknown-pragmas)
endfunction()
