// numpy's file format of one array, NPY (https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html): six
// bytes of magic, two of version, the header's length, the header, a literal of Python that names dtype, order and
// shape, and the array's bytes.
#pragma once

#include <string>

#include "trainer/train/files/mapped_file.h"

namespace narrowcast::files {

// The array of a file of format 1.0, 2.0 or 3.0, left where it is. The dtypes are those of tensors: float16, float32,
// float64, int8, int16, int32, int64, uint8, uint16, uint32 and bool, whose bytes are not looked at. Throws
// c10::ValueError naming the path if the file cannot be read, and CorruptInputError naming the path, the byte at which
// it is wrong and the value there for anything that is not exactly such a file: another version, big-endian numbers,
// Fortran's order, other dtypes, keys that are missing or unknown, a shape of more than 64 dimensions or 2^63-1 bytes,
// and more or fewer bytes than it needs.
MappedTensor map_npy(const std::string& path);

}  // namespace narrowcast::files
