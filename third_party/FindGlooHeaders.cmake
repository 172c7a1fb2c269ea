# LibTorch contains Gloo without its headers; ProcessGroupGloo.hpp needs them. The headers of any version work: Gloo's
# types appear there only behind pointers.
include(FindPackageHandleStandardArgs)
find_path(GlooHeaders_INCLUDE_DIR gloo/rendezvous/store.h)
find_package_handle_standard_args(GlooHeaders REQUIRED_VARS GlooHeaders_INCLUDE_DIR)
if(GlooHeaders_FOUND AND NOT TARGET gloo::headers)
  add_library(gloo::headers INTERFACE IMPORTED)
  set_target_properties(gloo::headers PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${GlooHeaders_INCLUDE_DIR}")
endif()
