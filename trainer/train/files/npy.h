// numpy's file format of one array, NPY (https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html). Its
// parts: six bytes of magic, two of version, the header's length, the header, and the array's bytes. The header is a
// Python literal with dtype, order and shape.
#pragma once

#include <string>

#include "trainer/train/files/mapped_file.h"

namespace narrowcast::files {

// The mapped array of a file of format 1.0, 2.0 or 3.0. The dtypes are those of tensors: float16, float32, float64,
// int8, int16, int32, int64, uint8, uint16, uint32 and bool, whose bytes are not checked.
//
// Throws c10::ValueError naming the path if the file cannot be read. Throws CorruptInputError naming the path, the
// wrong byte and the value there for anything that is not exactly such a file:
//   - another version, big-endian numbers, Fortran order, or another dtype,
//   - missing or unknown keys,
//   - a shape of more than 64 dimensions or 2^63-1 bytes,
//   - too many or too few bytes.
MappedTensor map_npy(const std::string& path);

}  // namespace narrowcast::files
