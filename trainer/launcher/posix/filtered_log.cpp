#include "trainer/launcher/posix/filtered_log.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>

namespace narrowcast::launcher {

bool FilteredLog::is_wanted(std::string_view line) const {
  return std::ranges::any_of(filter_.texts,
                             [line](const std::string& text) { return line.find(text) != std::string_view::npos; });
}

int FilteredLog::push(std::string_view lines, std::string_view prefix) {
  std::string wanted;
  while (!lines.empty()) {
    const std::string_view line = lines.substr(0, lines.find('\n') + 1);
    if (is_wanted(line.substr(std::min(prefix.size(), line.size())))) {
      wanted += line;
    }
    lines.remove_prefix(line.size());
  }
  return write(wanted);
}

int FilteredLog::write(std::string_view bytes) {
  while (file_.is_open() && !bytes.empty()) {
    const ssize_t count = ::write(file_.get(), bytes.data(), bytes.size());
    if (count > 0) {
      bytes.remove_prefix(static_cast<size_t>(count));
    } else if (errno != EINTR) {
      const int reason = errno;
      file_.close();
      return reason;
    }
  }
  return 0;
}

}  // namespace narrowcast::launcher
