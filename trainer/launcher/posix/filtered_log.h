// A file with the lines of all workers' output that hold one of some texts: torchrun's --duplicate_stdout_filters.
#pragma once

#include <string_view>
#include <utility>

#include "ops/common/file_descriptor.h"
#include "trainer/launcher/posix/worker_runner.h"

namespace narrowcast::launcher {

// The file, while it is written.
class FilteredLog {
 public:
  // `file` is filter.file, open to be written.
  FilteredLog(LineFilter filter, FileDescriptor file) : filter_(std::move(filter)), file_(std::move(file)) {}

  // Copies those of `lines`, whole ones, each behind `prefix`, that hold one of the texts after it. Returns 0, or once
  // why the file cannot be written, as errno has it: then it has ended.
  int push(std::string_view lines, std::string_view prefix);

  const LineFilter& filter() const { return filter_; }

 private:
  bool is_wanted(std::string_view line) const;
  int write(std::string_view bytes);

  const LineFilter filter_;
  FileDescriptor file_;
};

}  // namespace narrowcast::launcher
