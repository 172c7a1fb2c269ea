# How every target of the project is compiled.

# For all targets.
add_library(narrowcast_common_options INTERFACE)
target_compile_options(narrowcast_common_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic>
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${NARROWCAST_WERROR}>>:-Werror>
  # Each program contains the machine code of all kinds of GPU: 38 MB, if it is not compressed.
  $<$<COMPILE_LANGUAGE:CUDA>:--compress-mode=size>
  # A kernel that spills registers, or keeps arrays in local memory, is slow; both cases are warnings.
  "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra;-Xptxas=-warn-spills,-warn-lmem-usage>"
  "$<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<BOOL:${NARROWCAST_WERROR}>>:-Werror=all-warnings;-Xptxas=-Werror>")

# For code without sanitizers. An overflow of a buffer on the stack, of memory whose size the compiler knows, or of a
# standard container ends the program. Addresses of functions cannot be overwritten after the start.
add_library(narrowcast_hardening INTERFACE)
if(CMAKE_BUILD_TYPE STREQUAL "Release")
  target_compile_options(narrowcast_hardening INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:-fstack-protector-strong>")
  target_compile_definitions(narrowcast_hardening INTERFACE
    "$<$<COMPILE_LANGUAGE:CXX>:_FORTIFY_SOURCE=2;_GLIBCXX_ASSERTIONS>")
  target_link_options(narrowcast_hardening INTERFACE -Wl,-z,relro,-z,now)
endif()

# For builds without sanitizers. In a build with AddressSanitizer also for test programs whose own code needs no
# instrumentation (narrowcast_test): they reuse ccache's results of a release build.
add_library(narrowcast_plain_options INTERFACE)
target_link_libraries(narrowcast_plain_options INTERFACE narrowcast_common_options narrowcast_hardening)

# Targets link this one.
add_library(narrowcast_options INTERFACE)
if(NOT NARROWCAST_SANITIZE)
  target_link_libraries(narrowcast_options INTERFACE narrowcast_plain_options)
else()
  target_link_libraries(narrowcast_options INTERFACE narrowcast_common_options)
  # -O1 and short debug information halve the build time. The instrumentation hides initialisations from GCC's flow
  # analysis, which then warns about LibTorch's headers.
  set(_sanitize_flags "-fsanitize=${NARROWCAST_SANITIZE}" -fno-omit-frame-pointer -O1 -g1 -Wno-maybe-uninitialized)
  if(NARROWCAST_SANITIZE MATCHES "undefined")
    # LibTorch has no type information for sanitizers, so vptr checks cannot work.
    list(APPEND _sanitize_flags -fno-sanitize-recover=undefined -fno-sanitize=vptr)
  endif()
  # Builds Highway's kernels for 8 and 16 lanes of float32 and for one, not for 4: each set takes a minute.
  list(APPEND _sanitize_flags "-DHWY_DISABLED_TARGETS=(HWY_SSSE3|HWY_SSE4)")
  target_compile_options(narrowcast_options INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${_sanitize_flags}>")
  target_link_options(narrowcast_common_options INTERFACE "-fsanitize=${NARROWCAST_SANITIZE}")
  # If several files define an inline function, the linker keeps the first copy. Libraries come first, because they are
  # instrumented and some tests are not.
  set(CMAKE_CXX_LINK_EXECUTABLE "<CMAKE_CXX_COMPILER> <FLAGS> <CMAKE_CXX_LINK_FLAGS> <LINK_FLAGS> -Wl,--no-as-needed \
-Wl,--start-group <LINK_LIBRARIES> <OBJECTS> -Wl,--end-group -o <TARGET>")
endif()

# The folders of each layer's public headers. Our own files may include all of them; tests/structure/check_layers checks
# the layers.
set(NARROWCAST_PUBLIC_HEADERS ops/common/include ops/include hooks/include models/include trainer/ddp/include
  trainer/base/include)
list(TRANSFORM NARROWCAST_PUBLIC_HEADERS PREPEND "${PROJECT_SOURCE_DIR}/")
target_include_directories(narrowcast_common_options INTERFACE "${PROJECT_SOURCE_DIR}" ${NARROWCAST_PUBLIC_HEADERS})

# narrowcast_library(<name> SOURCES ... [DEPS <library of ours>...] [PRIVATE_DEPS <target>...])
#
# The shared library narrowcast_<name>, installed and exported as narrowcast::<name>, offers the declarations of its
# public headers. narrowcast_<name>_parts contains all of it, for our programs and tests, which also use its internal
# parts. A program links one of the two. narrowcast_<name>_static is the target with the sources.
function(narrowcast_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  set(target narrowcast_${name})
  list(TRANSFORM arg_DEPS PREPEND narrowcast:: OUTPUT_VARIABLE libraries)
  list(TRANSFORM arg_DEPS REPLACE "(.+)" "narrowcast_\\1_parts" OUTPUT_VARIABLE parts)

  add_library(${target}_static STATIC ${arg_SOURCES})
  target_link_libraries(${target}_static PUBLIC libtorch::cpu ${parts} PRIVATE narrowcast_options ${arg_PRIVATE_DEPS})
  narrowcast_use_pch(${target}_static)
  # WHOLE_ARCHIVE: nothing refers to the objects that register operators.
  add_library(${target}_parts INTERFACE)
  target_link_libraries(${target}_parts INTERFACE $<LINK_LIBRARY:WHOLE_ARCHIVE,${target}_static>)

  add_library(${target} SHARED $<TARGET_OBJECTS:${target}_static>)
  add_library(narrowcast::${name} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name} SOVERSION ${PROJECT_VERSION_MAJOR}
    VERSION ${PROJECT_VERSION} LINKER_LANGUAGE CXX)
  target_compile_features(${target} INTERFACE cxx_std_20)
  target_include_directories(${target} INTERFACE
    "$<BUILD_INTERFACE:${NARROWCAST_PUBLIC_HEADERS}>" "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
  target_link_libraries(${target}
    PUBLIC libtorch::cpu ${libraries}
    PRIVATE $<BUILD_INTERFACE:narrowcast_options> ${arg_PRIVATE_DEPS})
  target_link_options(${target} PRIVATE -Wl,-z,defs)
  set_property(GLOBAL APPEND PROPERTY NARROWCAST_INSTALLED_TARGETS ${target})
endfunction()

# narrowcast_link_privately(<name> <target>...): adds dependencies of a library's own files after the library was made.
function(narrowcast_link_privately name)
  target_link_libraries(narrowcast_${name}_static PRIVATE ${ARGN})
  target_link_libraries(narrowcast_${name} PRIVATE ${ARGN})
endfunction()

# narrowcast_program(<name> SOURCES ... [DEPS ...])
# A program installed as bin/<name>; dashes become underscores in the target's name.
function(narrowcast_program name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPS" ${ARGN})
  string(REPLACE "-" "_" target "${name}")
  add_executable(${target} ${arg_SOURCES})
  set_target_properties(${target} PROPERTIES OUTPUT_NAME "${name}")
  target_compile_features(${target} PRIVATE cxx_std_20)
  target_compile_definitions(${target} PRIVATE NARROWCAST_VERSION="${PROJECT_VERSION}")
  target_link_libraries(${target} PRIVATE narrowcast_options narrowcast_program ${arg_DEPS})
  narrowcast_steers(${target})
  if(NARROWCAST_SANITIZE)  # Tests that start programs are not run under sanitizers.
    set_property(TARGET ${target} PROPERTY EXCLUDE_FROM_ALL ON)
  else()
    install(TARGETS ${target})
  endif()
  set_property(GLOBAL APPEND PROPERTY NARROWCAST_PROGRAMS ${target})
endfunction()

# narrowcast_steers(<target>...): targets that compute nothing themselves and only call LibTorch and ops. They are
# optimised less: this takes a third off their compile time, and training steps are not slower.
function(narrowcast_steers)
  foreach(target IN LISTS ARGN)
    target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
  endforeach()
endfunction()

# narrowcast_parallel_sources(<target> <file>...): files of the calling folder that call at::parallel_for, which is
# serial unless its caller is compiled with OpenMP. They cannot share the precompiled header, which was made without.
# The OpenMP runtime is LibTorch's: a second one would ignore at::set_num_threads. ThreadSanitizer cannot see that
# runtime's barriers and would report every parallel loop, so the loops are serial under it.
function(narrowcast_parallel_sources target)
  if(NOT NARROWCAST_SANITIZE MATCHES "thread")
    set_property(SOURCE ${ARGN} TARGET_DIRECTORY ${target} APPEND PROPERTY COMPILE_OPTIONS -fopenmp)
    set_property(SOURCE ${ARGN} TARGET_DIRECTORY ${target} PROPERTY SKIP_PRECOMPILE_HEADERS ON)
  endif()
endfunction()

# narrowcast_exact_sources(<target> <file>...): files of the calling folder whose arithmetic rounds after every
# operation, unless the code requests otherwise.
function(narrowcast_exact_sources target)
  set_property(SOURCE ${ARGN} TARGET_DIRECTORY ${target} APPEND PROPERTY COMPILE_OPTIONS -ffp-contract=off)
  set_property(SOURCE ${ARGN} TARGET_DIRECTORY ${target} PROPERTY SKIP_PRECOMPILE_HEADERS ON)
endfunction()

# narrowcast_cuda_kernels(<target> <file>...): adds kernels, *.cu files of the calling folder, to a target made
# elsewhere. They share their arithmetic with the CPU's kernels, and it rounds after every operation there as well.
function(narrowcast_cuda_kernels target)
  target_sources(${target} PRIVATE ${ARGN})
  set_property(SOURCE ${ARGN} TARGET_DIRECTORY ${target} APPEND PROPERTY COMPILE_OPTIONS -fmad=false)
endfunction()

# narrowcast_compile_together(<directory>): combines up to sixteen files of a target into one to compile, in all targets
# of the directory and its subdirectories. Only files that belong to the same CMakeLists.txt are combined (files of its
# folder, and of folders below it without one). CMake's UNITY_BUILD is not used: its files contain absolute paths, so
# that ccache finds no results in another checkout. Files with separate options are not combined.
function(narrowcast_compile_together directory)
  get_property(targets DIRECTORY "${directory}" PROPERTY BUILDSYSTEM_TARGETS)
  foreach(target IN LISTS targets)
    get_target_property(type ${target} TYPE)
    if(NOT type MATCHES "^(UTILITY|INTERFACE_LIBRARY)$")
      narrowcast_compile_target_together(${target})
    endif()
  endforeach()
  get_property(below DIRECTORY "${directory}" PROPERTY SUBDIRECTORIES)
  foreach(subdirectory IN LISTS below)
    narrowcast_compile_together("${subdirectory}")
  endforeach()
endfunction()

function(narrowcast_compile_target_together target)
  get_target_property(sources ${target} SOURCES)
  get_target_property(directory ${target} SOURCE_DIR)
  get_target_property(binary_directory ${target} BINARY_DIR)
  list(FILTER sources INCLUDE REGEX "\\.cpp$")
  set(folders)
  set(parts)
  foreach(source IN LISTS sources)
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY "${directory}" NORMALIZE OUTPUT_VARIABLE file)
    get_property(options SOURCE "${file}" TARGET_DIRECTORY ${target} PROPERTY COMPILE_OPTIONS)
    get_property(definitions SOURCE "${file}" TARGET_DIRECTORY ${target} PROPERTY COMPILE_DEFINITIONS)
    cmake_path(IS_PREFIX PROJECT_SOURCE_DIR "${file}" ours)
    cmake_path(IS_PREFIX PROJECT_BINARY_DIR "${file}" generated)  # Files that compile one header each.
    if(options OR definitions OR generated OR NOT ours)
      continue()
    endif()
    cmake_path(RELATIVE_PATH file BASE_DIRECTORY "${PROJECT_SOURCE_DIR}" OUTPUT_VARIABLE name)
    cmake_path(GET name PARENT_PATH folder)
    while(NOT EXISTS "${PROJECT_SOURCE_DIR}/${folder}/CMakeLists.txt")
      cmake_path(GET folder PARENT_PATH folder)
    endwhile()
    string(MAKE_C_IDENTIFIER "${folder}" folder)
    list(APPEND files_of_${folder} "${name}")
    list(APPEND folders "${folder}")
  endforeach()
  list(REMOVE_DUPLICATES folders)
  foreach(folder IN LISTS folders)  # Parts of equal size, so that no file is left alone.
    list(LENGTH files_of_${folder} count)
    math(EXPR parts_of_folder "(${count} + 15) / 16")
    foreach(name IN LISTS files_of_${folder})
      list(FIND files_of_${folder} "${name}" index)
      math(EXPR part "${index} * ${parts_of_folder} / ${count}")
      list(APPEND files_of_${folder}_${part} "${name}")
      list(APPEND parts "${folder}_${part}")
    endforeach()
  endforeach()
  list(REMOVE_DUPLICATES parts)
  foreach(part IN LISTS parts)
    list(LENGTH files_of_${part} count)
    if(count GREATER 1)
      set(together "${binary_directory}/together/${target}/${part}.cpp")
      list(TRANSFORM files_of_${part} REPLACE ".+" "#include \"\\0\"\n" OUTPUT_VARIABLE includes)
      string(JOIN "" includes ${includes})
      file(CONFIGURE OUTPUT "${together}" CONTENT "${includes}")
      target_sources(${target} PRIVATE "${together}")
      list(TRANSFORM files_of_${part} PREPEND "${PROJECT_SOURCE_DIR}/")
      set_property(SOURCE ${files_of_${part}} TARGET_DIRECTORY ${target} PROPERTY HEADER_FILE_ONLY ON)
    endif()
  endforeach()
endfunction()
