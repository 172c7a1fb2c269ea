# Headers that write protocol buffers. Debian's package has no files for CMake.
include(FindPackageHandleStandardArgs)
find_path(Protozero_INCLUDE_DIR protozero/pbf_writer.hpp)
find_package_handle_standard_args(Protozero REQUIRED_VARS Protozero_INCLUDE_DIR)
if(Protozero_FOUND AND NOT TARGET protozero::protozero)
  add_library(protozero::protozero INTERFACE IMPORTED)
  set_target_properties(protozero::protozero PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${Protozero_INCLUDE_DIR}")
endif()
