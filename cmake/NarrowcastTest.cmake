# How gtest programs and benchmarks are made.

# Linked into each of them, and compiled once.
add_library(narrowcast_test_main OBJECT
  "${PROJECT_SOURCE_DIR}/tests/support/sanitizer_defaults.cpp" "${PROJECT_SOURCE_DIR}/tests/support/seed_each_test.cpp")
target_link_libraries(narrowcast_test_main PRIVATE narrowcast_options libtorch::cpu GTest::gtest)

# The main function of the gtest programs.
add_library(narrowcast_gtest_main OBJECT "${PROJECT_SOURCE_DIR}/tests/support/gtest_main.cpp")
target_link_libraries(narrowcast_gtest_main PRIVATE narrowcast_options GTest::gmock)

# narrowcast_test(<name> [OWN_CODE] [DEPS ...] [LABELS ...]): a gtest program bin/narrowcast_<name>_tests.
# OWN_CODE: its files contain code of ours that is under test, such as kernels and codecs in headers. AddressSanitizer
# instruments the libraries and such programs; in other programs it only checks what they allocate, free and pass on.
# ThreadSanitizer must instrument all code that synchronises.
# The label "programs" marks tests that start our programs: they are not run under sanitizers, and not built by default
# there.
function(narrowcast_test name)
  cmake_parse_arguments(arg "OWN_CODE" "" "DEPS;LABELS" ${ARGN})
  set(target narrowcast_${name}_tests)
  add_executable(${target})
  set(options narrowcast_options)
  if(NARROWCAST_SANITIZE MATCHES "address" AND NOT arg_OWN_CODE)
    set(options narrowcast_plain_options)
    set_property(TARGET ${target} PROPERTY NARROWCAST_PLAIN ON)
  endif()
  set_property(TARGET ${target} PROPERTY NARROWCAST_LABELS "${arg_LABELS}")
  if(NARROWCAST_SANITIZE AND "programs" IN_LIST arg_LABELS)
    set_property(TARGET ${target} PROPERTY EXCLUDE_FROM_ALL ON)
  endif()
  target_link_libraries(${target} PRIVATE narrowcast_test_main narrowcast_gtest_main ${options} ${arg_DEPS} GTest::gmock)
  if(arg_OWN_CODE OR NARROWCAST_SANITIZE MATCHES "thread")
    target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
  else()
    narrowcast_compile_unoptimised(${target})
  endif()
  narrowcast_use_pch(${target})
  narrowcast_list_gpu_cases(${name})
endfunction()

# Compiles in a third less time than with -O1. _FORTIFY_SOURCE is for optimised code only.
function(narrowcast_compile_unoptimised target)
  set_property(TARGET ${target} PROPERTY NARROWCAST_UNOPTIMISED ON)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O0;-U_FORTIFY_SOURCE>)
endfunction()

# narrowcast_list_gpu_cases(<name>): makes each GPU case of narrowcast_test(<name>) a test of ctest
# (NarrowcastGpuCases.cmake). narrowcast_add_gpu_cases defines these cases by filters.
function(narrowcast_list_gpu_cases name)
  set(target narrowcast_${name}_tests)
  get_target_property(labels ${target} NARROWCAST_LABELS)
  list(APPEND labels gpu)
  set(script "${CMAKE_CURRENT_BINARY_DIR}/${target}_on_gpu.cmake")
  file(GENERATE OUTPUT "${script}" CONTENT
"set(name ${name})
set(program [==[$<TARGET_FILE:${target}>]==])
set(filter [==[$<JOIN:$<TARGET_PROPERTY:${target},NARROWCAST_GPU_CASES>,:>]==])
set(case_runner [==[${PROJECT_SOURCE_DIR}/tests/gpu/case]==] [==[${NARROWCAST_GPU_DRIVER}]==])
set(all_skipped [==[${NARROWCAST_ALL_SKIPPED}]==])
set(labels [==[${labels}]==])
set(environment [==[${NARROWCAST_TEST_ENVIRONMENT}]==])
include([==[${PROJECT_SOURCE_DIR}/cmake/NarrowcastGpuCases.cmake]==])
")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES "${script}")
endfunction()

# narrowcast_program_for_tests(<name> <library>...): builds NAME.cpp as a program for tests that are not run under
# sanitizers.
function(narrowcast_program_for_tests name)
  cmake_parse_arguments(arg "" "SOURCE" "" ${ARGN})
  if(NOT arg_SOURCE)
    set(arg_SOURCE ${name}.cpp)
  endif()
  add_executable(narrowcast_${name} ${arg_SOURCE})
  target_link_libraries(narrowcast_${name} PRIVATE narrowcast_options ${arg_UNPARSED_ARGUMENTS})
  if(NARROWCAST_SANITIZE)
    set_property(TARGET narrowcast_${name} PROPERTY EXCLUDE_FROM_ALL ON)
  endif()
  narrowcast_compile_unoptimised(narrowcast_${name})
  narrowcast_use_pch(narrowcast_${name})
endfunction()

# narrowcast_benchmark(<name> [PCH] SOURCES ... [DEPS ...]): a program bin/narrowcast_<name> of the target benchmarks.
# PCH compiles it with the precompiled header.
function(narrowcast_benchmark name)
  cmake_parse_arguments(arg "PCH" "" "SOURCES;DEPS" ${ARGN})
  set(target narrowcast_${name})
  add_executable(${target} EXCLUDE_FROM_ALL ${arg_SOURCES})
  target_link_libraries(${target} PRIVATE narrowcast_options ${arg_DEPS})
  if(arg_PCH)
    narrowcast_use_pch(${target})
  endif()
  add_dependencies(benchmarks ${target})
endfunction()

# The last lines of a gtest program that skipped all of its tests: ctest then prints "Skipped" instead of "Passed".
set(NARROWCAST_ALL_SKIPPED "PASSED  \\] 0 tests.\n.  SKIPPED [^\n]*listed below:(\n.  SKIPPED [^\n]*)*\n*$")

# OpenMP's threads sleep between parallel loops: several tests run at once, and busy-waiting threads would take their
# cores.
set(NARROWCAST_TEST_ENVIRONMENT OMP_WAIT_POLICY=passive)

# Cases that are left out under sanitizers, by the names of tests. Sanitizers find wrong accesses, not wrong results,
# and these parameters take the same paths as the others. (tests/support/sanitized.h is for cases that a test program
# can leave out itself.)
set(NARROWCAST_LEFT_OUT_HookConformance *_world8)                    # Leaves 1 to 5.
set(NARROWCAST_LEFT_OUT_StochasticRounding *.HasNoBias/*)            # The statistics of 4096 steps.
set(NARROWCAST_LEFT_OUT_PowerSgdLevels *world1_* *world2_* *world4_* *world8_*)  # Leaves 3 and 5.
set(NARROWCAST_LEFT_OUT_AutoHookOver */5 */8)                                    # Leaves worlds 1, 2, 3 and 5,
set(NARROWCAST_LEFT_OUT_ChannelSizeTest */1 */3 */5)                             # 1, 3 and 5,
set(NARROWCAST_LEFT_OUT_VerifyGradientsTest */1 */3)                             # 1 and 3,
set(NARROWCAST_LEFT_OUT_ResumeTest *_2)                                          # and 1 and 3.

# narrowcast_add_suites(<name> <test> <suite>... [DEVICES]): a test of ctest, which runs these suites of
# narrowcast_test(<name>) in one process. With DEVICES their cases run once on each device (kDevices of
# tests/support/devices.h). Each case on a GPU is then a separate test, so that a machine without a GPU visibly skips
# it.
function(narrowcast_add_suites name test)
  cmake_parse_arguments(PARSE_ARGV 2 arg "DEVICES" "" "")
  set(suites "${arg_UNPARSED_ARGUMENTS}")
  set(filter)
  foreach(suite IN LISTS suites)
    list(APPEND filter "${suite}.*" "*/${suite}.*" "${suite}/*" "*/${suite}/*")
  endforeach()
  list(GET suites 0 first)
  set(left_out)
  if(NARROWCAST_SANITIZE AND DEFINED NARROWCAST_LEFT_OUT_${first})
    set(left_out "${NARROWCAST_LEFT_OUT_${first}}")
  endif()
  if(arg_DEVICES)
    narrowcast_add_gpu_cases(${name} "*/${first}.*/cuda" "*/${first}.*_cuda")
    list(APPEND left_out "*/cuda" "*_cuda")
  endif()
  if(test MATCHES "Cuda" AND NOT NARROWCAST_KERNELS_ON_HOST)
    narrowcast_add_gpu_cases(${name} ${filter})
    return()
  endif()
  list(JOIN filter ":" filter)
  list(JOIN left_out ":" left_out)
  narrowcast_add_cases(${name} ${test} "${filter}" "${left_out}")
endfunction()

# narrowcast_add_gpu_cases(<name> <filter>...): the cases of narrowcast_test(<name>) that need a GPU.
function(narrowcast_add_gpu_cases name)
  set_property(TARGET narrowcast_${name}_tests APPEND PROPERTY NARROWCAST_GPU_CASES ${ARGN})
endfunction()

# Suites that take longest. They start first: in a new build folder ctest knows no durations, and one of them would
# otherwise run alone at the end.
set(NARROWCAST_LONG_SUITES CudaVariable FailedBackwardTest HookConformance NarrowcastRunElasticTest NarrowcastRunNodesTest
  NarrowcastTrainCheckpointsTest NarrowcastTrainHangTest NarrowcastTrainSilenceTest PowerSgdLevels ResumeTest StreamChunks)

# narrowcast_add_cases(<name> <test> <filter> <left out>): a test of ctest, from GoogleTest filters.
function(narrowcast_add_cases name test filter left_out)
  if(left_out)
    string(APPEND filter "-${left_out}")
  endif()
  get_target_property(labels narrowcast_${name}_tests NARROWCAST_LABELS)
  add_test(NAME ${test} COMMAND narrowcast_${name}_tests "--gtest_filter=${filter}")
  set_tests_properties(${test} PROPERTIES TIMEOUT 600 LABELS "${labels}" ENVIRONMENT "${NARROWCAST_TEST_ENVIRONMENT}"
    FAIL_REGULAR_EXPRESSION "Running 0 tests" SKIP_REGULAR_EXPRESSION "${NARROWCAST_ALL_SKIPPED}")
  string(REGEX REPLACE "^.*\\." "" suite "${test}")
  if(suite IN_LIST NARROWCAST_LONG_SUITES)
    set_tests_properties(${test} PROPERTIES COST 50)
  endif()
endfunction()

# Marks of tests that need a process in which no other suite ran: a forked child inherits its parent's state.
set(NARROWCAST_NEEDS_A_FRESH_PROCESS "fork_ranks|spawn_ranks|_DEATH|EXPECT_EXIT")

# narrowcast_suites_on_devices(<variable> <file>): the suites of a file whose cases run once on each device.
function(narrowcast_suites_on_devices variable source)
  file(STRINGS ${source} suites REGEX "^INSTANTIATE_TEST_SUITE_P\\(.*kDevices")
  file(STRINGS ${source} uses REGEX "kDevices")
  list(LENGTH suites count)
  list(LENGTH uses count_uses)
  if(NOT count EQUAL count_uses)
    message(FATAL_ERROR "${source}: kDevices must stand on the first line of INSTANTIATE_TEST_SUITE_P(, and nowhere else: "
      "else its cases on a GPU are no test of their own")
  endif()
  list(TRANSFORM suites REPLACE "^[A-Z_]+\\([A-Za-z0-9_]+, ([A-Za-z0-9_]+),.*" "\\1")
  set(${variable} "${suites}" PARENT_SCOPE)
endfunction()

# narrowcast_test_sources(<name> <file>...): adds files of the calling folder to narrowcast_test(<name>).
# Loading LibTorch takes a process 0.3 s of processor time, and 1 s with sanitizers. ctest therefore runs the suites of
# a folder in one process, `<name>.<folder below it>`. Some suites are separate tests of ctest, `<name>.<suite>`: suites
# with parameters, which take long, suites that start programs, and suites of files that need a fresh process. Suites on
# a GPU are one test for each case.
function(narrowcast_test_sources name)
  set(target narrowcast_${name}_tests)
  target_sources(${target} PRIVATE ${ARGN})
  get_target_property(labels ${target} NARROWCAST_LABELS)
  set(together)
  foreach(source IN LISTS ARGN)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${source})
    file(STRINGS ${source} tests REGEX "^(TEST|TEST_F|TEST_P|TYPED_TEST|TYPED_TEST_P)\\(")
    file(STRINGS ${source} fresh REGEX "${NARROWCAST_NEEDS_A_FRESH_PROCESS}" LIMIT_COUNT 1)
    set(suites "${tests}")
    list(TRANSFORM suites REPLACE "^[A-Z_]+\\(([A-Za-z0-9_]+),.*" "\\1")
    list(REMOVE_DUPLICATES suites)
    narrowcast_suites_on_devices(on_devices ${source})
    foreach(suite IN LISTS suites)
      if(fresh OR "programs" IN_LIST labels OR suite MATCHES "Cuda" OR tests MATCHES "(_P|TYPED_TEST)\\(${suite},")
        set(devices)
        if(suite IN_LIST on_devices)
          set(devices DEVICES)
        endif()
        narrowcast_add_suites(${name} ${name}.${suite} ${suite} ${devices})
      else()
        list(APPEND together ${suite})
      endif()
    endforeach()
  endforeach()
  if(together)
    cmake_path(RELATIVE_PATH CMAKE_CURRENT_SOURCE_DIR BASE_DIRECTORY "${PROJECT_SOURCE_DIR}/tests" OUTPUT_VARIABLE folder)
    string(REGEX REPLACE "^(trainer/)?${name}/" "" folder "${folder}")
    string(REGEX REPLACE "^trainer/" "" folder "${folder}")
    if(TEST ${name}.${folder})  # The folder's second call.
      cmake_path(GET ARGV1 STEM LAST_ONLY file)
      string(APPEND folder "/${file}")
    endif()
    narrowcast_add_suites(${name} ${name}.${folder} ${together})
  endif()
endfunction()

# narrowcast_kernel_test_sources(<name> <file>...): the same for files that compile CUDA kernels for the CPU
# (tests/support/cuda_on_host). As in the kernels, arithmetic rounds after every operation, and memory is accessed as
# vectors of any type.
function(narrowcast_kernel_test_sources name)
  set(NARROWCAST_KERNELS_ON_HOST ON)
  narrowcast_test_sources(${name} ${ARGN})
  set_property(SOURCE ${ARGN} TARGET_DIRECTORY narrowcast_${name}_tests
    APPEND PROPERTY COMPILE_OPTIONS -ffp-contract=off -fno-strict-aliasing -Wno-unknown-pragmas)
endfunction()

# narrowcast_compile_alone(<target> <header>...): an object library, not built by default, in which one file per header
# includes nothing else.
function(narrowcast_compile_alone target)
  set(sources)
  foreach(header IN LISTS ARGN)
    cmake_path(RELATIVE_PATH header BASE_DIRECTORY "${PROJECT_SOURCE_DIR}")
    set(source "${CMAKE_CURRENT_BINARY_DIR}/alone/${header}.cpp")
    file(CONFIGURE OUTPUT "${source}" CONTENT "#include \"${header}\"\n")
    list(APPEND sources "${source}")
  endforeach()
  add_library(${target} OBJECT EXCLUDE_FROM_ALL ${sources})
  target_link_libraries(${target} PRIVATE narrowcast_options narrowcast_training narrowcast_launcher)
  if(NARROWCAST_CUDA)
    target_link_libraries(${target} PRIVATE libtorch::cuda CUDA::cudart)
  endif()
  target_compile_options(${target} PRIVATE -O0 -U_FORTIFY_SOURCE)  # _FORTIFY_SOURCE is for optimised code only.
endfunction()
