#include "trainer/launcher/posix/last_lines.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "ops/common/text.h"
#include "trainer/base/files/open_file.h"

namespace narrowcast::launcher {
namespace {

constexpr int64_t kTail = 64 << 10;
constexpr size_t kLongestNote = 40;  // bytes of the note about omitted bytes

// `beginning` is a whole text of `size` bytes, or more than kLongestText bytes of it.
std::string cut(std::string_view beginning, size_t size) {
  if (size <= kLongestText) {
    return std::string(beginning);
  }
  const std::string_view kept = first_characters(beginning, kLongestText - kLongestNote);
  return std::string(kept) + " ... (" + std::to_string(size - kept.size()) + " more bytes)";
}

}  // namespace

std::string cut_text(const std::string& text) { return cut(text, text.size()); }

void LastLines::Line::append(std::string_view bytes) {
  const size_t space = kLongestText + 1 - std::min(text.size(), kLongestText + 1);
  text.append(bytes.substr(0, space));
  size += bytes.size();
}

std::string LastLines::Line::shown() const { return cut(text, size); }

void LastLines::push(std::string_view bytes) {
  while (!bytes.empty()) {
    const size_t end = std::min(bytes.find_first_of("\r\n"), bytes.size());
    if (end > 0) {
      if (open_.returned) {
        end_line();
      }
      open_.append(bytes.substr(0, end));
    }
    if (end < bytes.size() && bytes[end] == '\r') {
      open_.returned = open_.size > 0;
    } else if (end < bytes.size()) {
      open_.returned = false;
      end_line();
    }
    bytes.remove_prefix(std::min(end + 1, bytes.size()));
  }
}

void LastLines::end_line() {
  if (open_.returned && !ended_.empty() && ended_.back().returned) {
    ended_.pop_back();
  }
  ended_.push_back(std::exchange(open_, Line()));
  if (ended_.size() > kMostLines) {
    ended_.pop_front();
  }
}

std::vector<std::string> LastLines::lines() const {
  LastLines all = *this;
  if (all.open_.size > 0) {
    all.end_line();
  }
  std::vector<std::string> lines;
  for (const Line& line : all.ended_) {
    lines.push_back(line.shown());
  }
  return lines;
}

std::vector<std::string> read_last_lines(const std::filesystem::path& path) {
  int64_t begin = 0;
  std::string tail;
  try {
    const files::InputFile file(path);
    begin = std::max<int64_t>(0, file.size() - kTail);
    tail.resize(static_cast<size_t>(file.size() - begin));
    tail.resize(static_cast<size_t>(file.read_some(begin, tail.data(), std::ssize(tail))));
  } catch (const c10::Error&) {
    return {};
  }
  LastLines last;
  // The first line read is probably incomplete. It is used only if there is no complete line.
  const size_t whole = begin == 0 ? std::string::npos : tail.find('\n');
  const bool has_whole_lines = whole != std::string::npos && whole + 1 < tail.size();
  last.push(has_whole_lines ? std::string_view(tail).substr(whole + 1) : tail);
  return last.lines();
}

}  // namespace narrowcast::launcher
