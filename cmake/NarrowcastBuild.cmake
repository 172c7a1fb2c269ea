# How every target of the project is compiled.

add_library(narrowcast_options INTERFACE)
target_compile_options(narrowcast_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic>
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${NARROWCAST_WERROR}>>:-Werror>
  # A kernel that spills registers, or keeps arrays in local memory, is slow without a word: both are warnings.
  "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra;-Xptxas=-warn-spills,-warn-lmem-usage>"
  "$<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<BOOL:${NARROWCAST_WERROR}>>:-Werror=all-warnings;-Xptxas=-Werror>")
if(NARROWCAST_SANITIZE)
  # -O1 and short debug information halve the time to build. The instrumentation hides initialisations
  # from GCC's flow analysis, which then warns inside LibTorch's headers.
  set(_sanitize_flags "-fsanitize=${NARROWCAST_SANITIZE}" -fno-omit-frame-pointer -O1 -g1 -Wno-maybe-uninitialized)
  if(NARROWCAST_SANITIZE MATCHES "undefined")
    # LibTorch has no sanitizer type information, so vptr checks cannot work.
    list(APPEND _sanitize_flags -fno-sanitize-recover=undefined -fno-sanitize=vptr)
  endif()
  target_compile_options(narrowcast_options INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${_sanitize_flags}>")
  target_link_options(narrowcast_options INTERFACE "-fsanitize=${NARROWCAST_SANITIZE}")
endif()

# One precompiled header for the whole project: making it costs as much as
# compiling several files, so targets reuse it instead of making their own.
# It is made with exactly the options the libraries are compiled with.
if(NARROWCAST_PCH)
  add_library(narrowcast_pch OBJECT "${PROJECT_SOURCE_DIR}/cmake/pch.cpp")
  target_link_libraries(narrowcast_pch PRIVATE narrowcast_options libtorch::cpu)
  target_precompile_headers(narrowcast_pch PRIVATE
    "$<$<COMPILE_LANGUAGE:CXX>:${PROJECT_SOURCE_DIR}/cmake/pch.h>")
endif()

# narrowcast_use_pch(<target>): for targets most of whose files include LibTorch.
function(narrowcast_use_pch target)
  if(NARROWCAST_PCH)
    target_precompile_headers(${target} REUSE_FROM narrowcast_pch)
    get_target_property(type ${target} TYPE)
    if(type STREQUAL "EXECUTABLE")  # CMake would say -fPIE, and the header was made with -fPIC.
      set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
      target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fPIC>)
    endif()
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Winvalid-pch>)
  endif()
endfunction()

# narrowcast_library(<name> SOURCES ... [DEPS ...] [PRIVATE_DEPS ...])
# A shared library narrowcast_<name>, installed and exported as narrowcast::<name>.
function(narrowcast_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  set(target narrowcast_${name})
  add_library(${target} SHARED ${arg_SOURCES})
  add_library(narrowcast::${name} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name} SOVERSION ${PROJECT_VERSION_MAJOR}
    VERSION ${PROJECT_VERSION})
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_include_directories(${target} PUBLIC
    "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>"
    "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/narrowcast>")
  target_link_libraries(${target}
    PUBLIC libtorch::cpu ${arg_DEPS}
    PRIVATE $<BUILD_INTERFACE:narrowcast_options> ${arg_PRIVATE_DEPS})
  narrowcast_use_pch(${target})
  set_property(GLOBAL APPEND PROPERTY NARROWCAST_INSTALLED_TARGETS ${target})
endfunction()

# narrowcast_program(<name> SOURCES ... [DEPS ...])
# A program installed as bin/<name>; dashes in its name become underscores in the target's.
function(narrowcast_program name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPS" ${ARGN})
  string(REPLACE "-" "_" target "${name}")
  add_executable(${target} ${arg_SOURCES})
  string(REPLACE "narrowcast_" "" export_name "${target}")
  set_target_properties(${target} PROPERTIES OUTPUT_NAME "${name}" EXPORT_NAME ${export_name}_program)
  target_compile_features(${target} PRIVATE cxx_std_20)
  target_compile_definitions(${target} PRIVATE NARROWCAST_VERSION="${PROJECT_VERSION}")
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${target} PRIVATE narrowcast_options narrowcast::program ${arg_DEPS})
  set_property(GLOBAL APPEND PROPERTY NARROWCAST_INSTALLED_TARGETS ${target})
endfunction()

# narrowcast_parallel_sources(<file>...): files that call at::parallel_for, which is serial unless its caller is
# compiled with OpenMP. They cannot share the precompiled header: it was made without. The runtime is the one that
# LibTorch brings: a second one would not know how many threads at::set_num_threads set. ThreadSanitizer does not see
# that runtime's barriers and would report every parallel loop, so under it the loops are serial.
function(narrowcast_parallel_sources)
  if(NOT NARROWCAST_SANITIZE MATCHES "thread")
    set_property(SOURCE ${ARGN} APPEND PROPERTY COMPILE_OPTIONS -fopenmp)
    set_property(SOURCE ${ARGN} PROPERTY SKIP_PRECOMPILE_HEADERS ON)
  endif()
endfunction()

# narrowcast_cuda_kernels(<target> <file>...): adds kernels, *.cu files of the calling folder, to a target made elsewhere.
# They share their arithmetic with the CPU's, and as there it rounds after every operation.
function(narrowcast_cuda_kernels target)
  target_sources(${target} PRIVATE ${ARGN})
  set_property(SOURCE ${ARGN} TARGET_DIRECTORY ${target} APPEND PROPERTY COMPILE_OPTIONS -fmad=false)
endfunction()
