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

if(CMAKE_BUILD_TYPE STREQUAL "Release" AND NOT NARROWCAST_SANITIZE)
  # An overflow of a buffer on the stack, of memory whose size the compiler knows, or of a standard container ends the
  # program instead of going unnoticed; addresses of functions cannot be overwritten after the start.
  target_compile_options(narrowcast_options INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:-fstack-protector-strong>")
  target_compile_definitions(narrowcast_options INTERFACE
    "$<$<COMPILE_LANGUAGE:CXX>:_FORTIFY_SOURCE=2;_GLIBCXX_ASSERTIONS>")
  target_link_options(narrowcast_options INTERFACE -Wl,-z,relro,-z,now)
endif()

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

# narrowcast_compile_together(<directory>): up to eight files of one folder of a target become one to compile, in all
# targets of the directory and of those below it. Not CMake's UNITY_BUILD: its files hold absolute paths, so that ccache
# finds nothing again in another checkout. Files with options of their own stay alone, and so do the tests of programs,
# which include little.
function(narrowcast_compile_together directory)
  get_property(targets DIRECTORY "${directory}" PROPERTY BUILDSYSTEM_TARGETS)
  foreach(target IN LISTS targets)
    get_target_property(type ${target} TYPE)
    get_target_property(labels ${target} NARROWCAST_LABELS)
    if(NOT type MATCHES "^(UTILITY|INTERFACE_LIBRARY)$" AND NOT "programs" IN_LIST labels)
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
  set(parts)
  foreach(source IN LISTS sources)
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY "${directory}" NORMALIZE OUTPUT_VARIABLE file)
    get_property(options SOURCE "${file}" TARGET_DIRECTORY ${target} PROPERTY COMPILE_OPTIONS)
    get_property(definitions SOURCE "${file}" TARGET_DIRECTORY ${target} PROPERTY COMPILE_DEFINITIONS)
    cmake_path(IS_PREFIX PROJECT_SOURCE_DIR "${file}" ours)
    cmake_path(IS_PREFIX PROJECT_BINARY_DIR "${file}" generated)  # Those that compile one header each.
    if(options OR definitions OR generated OR NOT ours)
      continue()
    endif()
    cmake_path(RELATIVE_PATH file BASE_DIRECTORY "${PROJECT_SOURCE_DIR}" OUTPUT_VARIABLE name)
    cmake_path(GET name PARENT_PATH folder)
    string(MAKE_C_IDENTIFIER "${folder}" folder)
    list(LENGTH files_of_${folder} count)
    math(EXPR part "${count} / 8")
    list(APPEND files_of_${folder} "${name}")
    list(APPEND files_of_${folder}_${part} "${name}")
    list(APPEND parts "${folder}_${part}")
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
