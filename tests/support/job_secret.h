// Job secrets, which are read from files.
#pragma once

#include <sys/stat.h>

#include <string>

#include "tests/support/temporary_folder.h"
#include "trainer/base/program/job_secret.h"

namespace narrowcast::testing {

// A file that contains the secret `text`, for the lifetime of this object.
class SecretFile {
 public:
  explicit SecretFile(const std::string& text) : path_(folder_.write("secret", text)) { chmod(path_.c_str(), 0600); }
  const std::string& path() const { return path_; }

 private:
  const TemporaryFolder folder_;
  const std::string path_;
};

// The job secret `text`.
inline program::JobSecret secret_of(const std::string& text) {
  return program::JobSecret::read("secret", SecretFile(text).path());
}

}  // namespace narrowcast::testing
