// SHA-256 of bytes and files, the same as the program `sha256sum` prints.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

struct evp_md_ctx_st;

namespace narrowcast::files {

class Sha256 {
 public:
  Sha256();

  void update(std::string_view bytes);
  // Of all bytes so far, as 64 lower-case hexadecimal digits.
  std::string hex() const;

 private:
  std::unique_ptr<evp_md_ctx_st, void (*)(evp_md_ctx_st*)> context_;
};

// What tells one content of a file from another.
struct FileDigest {
  int64_t bytes = 0;
  std::string sha256 = {};
  bool operator==(const FileDigest&) const = default;
};

// Of the file as it is now. Errors as for InputFile (input/input_file.h).
FileDigest digest_of_file(const std::string& path);

}  // namespace narrowcast::files
