// Archives of PyTorch: ZIP files whose records are not compressed.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "trainer/base/files/open_file.h"

namespace caffe2::serialize {
class PyTorchStreamReader;
}

namespace narrowcast::files {

// All functions throw CorruptInputError naming the path if the archive is damaged.
class TorchArchive {
 public:
  // Throws c10::ValueError naming the path if it cannot be read, or "PATH: OTHERWISE" if it is not such an archive.
  TorchArchive(const std::string& path, const std::string& otherwise);
  ~TorchArchive();
  TorchArchive(const TorchArchive&) = delete;
  TorchArchive& operator=(const TorchArchive&) = delete;

  bool has(const std::string& name) const;

  // The first record below `folder` whose name ends in `suffix`.
  std::optional<std::string> find(std::string_view folder, std::string_view suffix) const;

  // The bytes of a record, whose checksum is right.
  std::string read(const std::string& name) const;

 private:
  void check_sum(const std::string& name, std::string_view bytes) const;

  InputFile file_;
  std::unique_ptr<caffe2::serialize::PyTorchStreamReader> reader_;
};

}  // namespace narrowcast::files
