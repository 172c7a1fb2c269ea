# LibTorch's headers, precompiled, for the files that include them.
#
# GCC reads a precompiled header in tenths of a second. It then spends seconds in every file on the templates that the
# header's inline functions use, needed or not. A file therefore uses the precompiled header only if it includes such
# headers anyway.

# narrowcast_own_headers(<file> <variable>): paths of our headers that one of our files includes, directly or
# indirectly, and its own path. Conditions are ignored: all branches count.
function(narrowcast_own_headers file variable)
  set(property "NARROWCAST_OWN_HEADERS_OF_${file}")
  get_property(known GLOBAL PROPERTY "${property}" SET)
  if(NOT known)
    set(headers "${file}")
    set_property(GLOBAL PROPERTY "${property}" "${headers}")  # Ends the recursion of a header that includes itself.
    set_property(DIRECTORY "${PROJECT_SOURCE_DIR}" APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${file}")
    file(STRINGS "${file}" lines REGEX "^#include (\"|<narrowcast/)")
    foreach(line IN LISTS lines)
      string(REGEX REPLACE "^#include .(.*)[\">].*" "\\1" name "${line}")
      unset(header)
      find_file(header "${name}" PATHS "${PROJECT_SOURCE_DIR}" ${NARROWCAST_PUBLIC_HEADERS} NO_CACHE NO_DEFAULT_PATH)
      if(header)
        narrowcast_own_headers("${header}" more)
        list(APPEND headers ${more})
      endif()
    endforeach()
    list(REMOVE_DUPLICATES headers)
    set_property(GLOBAL PROPERTY "${property}" "${headers}")
  endif()
  get_property(headers GLOBAL PROPERTY "${property}")
  set(${variable} "${headers}" PARENT_SCOPE)
endfunction()

# narrowcast_includes(<file> <regex> <variable>): whether one of our files includes, directly or through our headers, a
# header in angle brackets that matches.
function(narrowcast_includes file regex variable)
  set(${variable} FALSE PARENT_SCOPE)
  narrowcast_own_headers("${file}" files)
  foreach(own IN LISTS files)
    file(STRINGS "${own}" lines REGEX "^#include <(${regex})" LIMIT_COUNT 1)
    if(lines)
      set(${variable} TRUE PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()

# One precompiled header for the whole project: making it costs as much as compiling several files, so targets share it.
# It is made with exactly the options of the libraries. Builds with sanitizers have one for instrumented code and one
# for other code. The latter has the same name as in other builds, because ccache identifies files by their commands.
function(narrowcast_add_pch name options)
  add_library(${name} OBJECT EXCLUDE_FROM_ALL "${PROJECT_SOURCE_DIR}/cmake/pch.cpp")
  target_link_libraries(${name} PRIVATE ${options} libtorch::cpu)
  # In angle brackets: an absolute path in CMake's generated file would keep clones from sharing it.
  target_precompile_headers(${name} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:<cmake/pch.h$<ANGLE-R>>")
  if(CMAKE_CXX_COMPILER_LAUNCHER)
    set_target_properties(${name} PROPERTIES CXX_COMPILER_LAUNCHER
      "${PROJECT_SOURCE_DIR}/cmake/compile_header;${PROJECT_SOURCE_DIR};${CMAKE_CXX_COMPILER};${CMAKE_CXX_COMPILER_LAUNCHER}")
  endif()
endfunction()
if(NARROWCAST_PCH)
  narrowcast_add_pch(narrowcast_pch narrowcast_plain_options)
  narrowcast_add_pch(narrowcast_unoptimised_pch narrowcast_plain_options)
  target_compile_options(narrowcast_unoptimised_pch PRIVATE $<$<CONFIG:Release>:-O0;-U_FORTIFY_SOURCE>)
  if(NARROWCAST_SANITIZE)
    narrowcast_add_pch(narrowcast_sanitized_pch narrowcast_options)
  endif()
endif()

# Headers that cost more than reading the precompiled one.
set(NARROWCAST_COSTLY_HEADERS "torch/|ATen/ATen.h|ATen/Functions.h|ATen/core/ivalue.h")

# narrowcast_use_pch(<target>): files of the target that include much of LibTorch are compiled with the precompiled
# header.
function(narrowcast_use_pch target)
  if(NARROWCAST_PCH)
    get_target_property(plain ${target} NARROWCAST_PLAIN)
    get_target_property(unoptimised ${target} NARROWCAST_UNOPTIMISED)
    if(unoptimised AND (plain OR NOT NARROWCAST_SANITIZE))
      target_precompile_headers(${target} REUSE_FROM narrowcast_unoptimised_pch)
    elseif(NARROWCAST_SANITIZE AND NOT plain)
      target_precompile_headers(${target} REUSE_FROM narrowcast_sanitized_pch)
    else()
      target_precompile_headers(${target} REUSE_FROM narrowcast_pch)
    endif()
    get_target_property(type ${target} TYPE)
    if(type STREQUAL "EXECUTABLE")  # CMake would use -fPIE; the header was made with -fPIC.
      set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
      target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fPIC>)
    endif()
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Winvalid-pch>)
    # Runs after all folders have added their files.
    cmake_language(EVAL CODE
      "cmake_language(DEFER DIRECTORY [[${PROJECT_SOURCE_DIR}]] CALL narrowcast_skip_needless_pch [[${target}]])")
  endif()
endfunction()

function(narrowcast_skip_needless_pch target)
  get_target_property(sources ${target} SOURCES)
  get_target_property(folder ${target} SOURCE_DIR)
  list(FILTER sources INCLUDE REGEX "\\.cpp$")
  foreach(source IN LISTS sources)
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY "${folder}" NORMALIZE OUTPUT_VARIABLE file)
    narrowcast_includes("${file}" "${NARROWCAST_COSTLY_HEADERS}" costly)
    if(NOT costly)
      set_property(SOURCE "${file}" TARGET_DIRECTORY ${target} PROPERTY SKIP_PRECOMPILE_HEADERS ON)
    endif()
  endforeach()
endfunction()
