# Finds CPython 3.11 for tests, and the torch and tensorboard packages of `third_party/setup --python`, with torch in
# the version of the build.
find_package(Python3 3.11 EXACT QUIET COMPONENTS Interpreter)  # To use another one: -DPython3_EXECUTABLE=FILE.
set(_cache "$ENV{XDG_CACHE_HOME}")
if(NOT _cache)
  set(_cache "$ENV{HOME}/.cache")
endif()
set(_cache "${_cache}/narrowcast")
set(NARROWCAST_PYTHON_TORCH "${_cache}/libtorch-${LibTorch_VERSION}-cuda:${_cache}/python-torch-${LibTorch_VERSION}"
  CACHE STRING "PYTHONPATH with the torch package, of the build's LibTorch version, for the tests that run Python")
file(STRINGS "${PROJECT_SOURCE_DIR}/third_party/python-data.txt" _data REGEX "^[a-z]+==")
list(TRANSFORM _data REPLACE "^[a-z]+==([0-9.]*).*" "\\1")
list(JOIN _data "-" _data)
set(NARROWCAST_PYTHON_DATA "${_cache}/python-data-${_data}"
  CACHE STRING "PYTHONPATH with numpy and safetensors, for the tests that write data with them")
file(STRINGS "${PROJECT_SOURCE_DIR}/third_party/python-tensorboard.txt" _tensorboard REGEX "^tensorboard==")
string(REGEX REPLACE "^tensorboard==([0-9.]*).*" "\\1" _tensorboard "${_tensorboard}")
set(NARROWCAST_PYTHON_TENSORBOARD "${_cache}/python-tensorboard-${_tensorboard}"
  CACHE STRING "PYTHONPATH with the tensorboard package, for the test of event files")
file(STRINGS "${PROJECT_SOURCE_DIR}/third_party/python-frameworks.txt" _frameworks
  REGEX "^(accelerate|pytorch-lightning|torchvision)==")
list(TRANSFORM _frameworks REPLACE "^[a-z-]+==([0-9.]*).*" "\\1")
list(JOIN _frameworks "-" _frameworks)
set(NARROWCAST_PYTHON_FRAMEWORKS "${_cache}/python-frameworks-${_frameworks}"
  CACHE STRING "PYTHONPATH with Lightning, Accelerate and torchvision, for the tests that train with them")
file(STRINGS "${PROJECT_SOURCE_DIR}/third_party/python-types.txt" _types REGEX "^mypy==")
string(REGEX REPLACE "^mypy==([0-9.]*).*" "\\1" _types "${_types}")
set(NARROWCAST_PYTHON_TYPES "${_cache}/python-types-${_types}"
  CACHE STRING "PYTHONPATH with mypy, for the test that checks the types of the Python package")
# Python compiles the modules that it imports, 1500 files for torch. Results are kept here for all clones, in any
# environment of the caller. Importing torch then takes 1.7 s of processor time instead of 3.4 s.
set(NARROWCAST_PYTHON_BYTECODE "${_cache}/python-bytecode")

# narrowcast_python_test(<name> <module>...): unittest modules of this folder of tests/python in one process, because
# importing torch takes seconds. The folders in ${packages} are on their path.
function(narrowcast_python_test name)
  set(python "")
  if(Python3_FOUND)
    set(python "${Python3_EXECUTABLE}")
  endif()
  get_filename_component(folder "${CMAKE_CURRENT_SOURCE_DIR}" NAME)
  list(TRANSFORM ARGN PREPEND "${folder}.")
  add_test(NAME python.${name}
    COMMAND "${PROJECT_SOURCE_DIR}/tests/python/support/run_tests" "${python}" "${packages}" ${ARGN})
  set_tests_properties(python.${name} PROPERTIES LABELS programs TIMEOUT 1200 COST 100 SKIP_RETURN_CODE 77
    FAIL_REGULAR_EXPRESSION "Ran 0 tests"
    ENVIRONMENT "NARROWCAST_OPS_LIBRARY=$<TARGET_FILE:narrowcast_ops>;NARROWCAST_LIBRARY_DIR=$<TARGET_FILE_DIR:narrowcast_classes>;PYTHONDONTWRITEBYTECODE=;PYTHONPYCACHEPREFIX=${NARROWCAST_PYTHON_BYTECODE}")
endfunction()
