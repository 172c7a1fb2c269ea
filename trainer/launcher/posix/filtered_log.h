// A file with all workers' output lines that contain one of some texts: torchrun's --duplicate_stdout_filters.
#pragma once

#include <string_view>
#include <utility>

#include "ops/common/file_descriptor.h"
#include "trainer/launcher/posix/worker_runner.h"

namespace narrowcast::launcher {

// An open file of filtered lines.
class FilteredLog {
 public:
  // `file` is filter.file, open for writing.
  FilteredLog(LineFilter filter, FileDescriptor file) : filter_(std::move(filter)), file_(std::move(file)) {}

  // Copies the lines that contain one of the texts. `lines` are complete lines that begin with `prefix`, which is not
  // searched. Returns 0, or the errno of a failed write once: the file is closed then.
  int push(std::string_view lines, std::string_view prefix);

  const LineFilter& filter() const { return filter_; }

 private:
  bool is_wanted(std::string_view line) const;
  int write(std::string_view bytes);

  const LineFilter filter_;
  FileDescriptor file_;
};

}  // namespace narrowcast::launcher
