// Computes a file's digest without the product's readers and writers.
#pragma once

#include <string>

#include "trainer/base/files/open_file.h"
#include "trainer/train/files/file_io.h"

namespace narrowcast::testing {

// The digest of the file's present content.
inline files::FileDigest digest_of_file(const std::string& path) {
  const std::string content = files::read_file(path);
  files::Sha256 hash;
  hash.update(content);
  return {static_cast<int64_t>(content.size()), hash.hex()};
}

}  // namespace narrowcast::testing
