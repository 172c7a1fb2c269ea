# narrowcast_libtorch_folder(<variable> <variant>): the folder of the LibTorch to use, which may be missing. The variant
# is cpu or cuda.
function(narrowcast_libtorch_folder variable variant)
  set(folder "${NARROWCAST_LIBTORCH}")
  if(NOT folder)
    set(cache "$ENV{XDG_CACHE_HOME}")
    if(NOT cache)
      set(cache "$ENV{HOME}/.cache")
    endif()
    set(version "${NARROWCAST_LIBTORCH_VERSION}")
    if(NOT version)
      set(version 2.11)  # As in third_party/setup.
    endif()
    set(folder "${cache}/narrowcast/libtorch-${version}.0-${variant}/torch")
  endif()
  set(${variable} "${folder}" PARENT_SCOPE)
endfunction()
