# Where tests find CPython 3.11 and the torch package that `third_party/setup --python` gets, of the version the build has.
find_package(Python3 3.11 EXACT QUIET COMPONENTS Interpreter)  # Another one: -DPython3_EXECUTABLE=FILE.
set(_cache "$ENV{XDG_CACHE_HOME}")
if(NOT _cache)
  set(_cache "$ENV{HOME}/.cache")
endif()
set(_cache "${_cache}/narrowcast")
set(NARROWCAST_PYTHON_TORCH
  "${_cache}/libtorch-${LibTorch_VERSION}-cuda:${_cache}/python-torch-${LibTorch_VERSION}:${_cache}/python-data"
  CACHE STRING "PYTHONPATH with the torch package, of the build's LibTorch version, numpy and safetensors, for the tests that run Python")
# Python compiles what it imports, 1500 files for torch. It keeps them here for all clones, whatever the caller's
# environment says: to import torch takes 1.7 s of processor time then, and 3.4 s otherwise.
set(NARROWCAST_PYTHON_BYTECODE "${_cache}/python-bytecode")
