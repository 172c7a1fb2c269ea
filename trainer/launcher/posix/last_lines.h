// What the launcher keeps of a worker's last words. All of it is cut, so that a report of a failure has a size that is
// known beforehand, whatever the worker wrote.
#pragma once

#include <cstddef>
#include <deque>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace narrowcast::launcher {

// How many of a failed rank's last lines are kept.
constexpr size_t kMostLines = 10;

// Bytes of one text in a report: a line, or an error message.
constexpr size_t kLongestText = 4096;

// `text`, or its beginning and how many bytes are left out, together at most kLongestText bytes. UTF-8 is cut between
// characters.
std::string cut_text(const std::string& text);

// The last lines of a stream. A carriage return ends a line as well, so that what is written over it does not hide it;
// of several such lines in a row, as a progress bar is, the last is kept.
class LastLines {
 public:
  void push(std::string_view bytes);

  // Oldest first, at most kMostLines, each as cut_text() has it. What has no end yet counts as a line.
  std::vector<std::string> lines() const;

 private:
  // One line: its beginning, and how long it is.
  struct Line {
    std::string text = {};
    size_t size = 0;
    bool returned = false;  // ended by a carriage return, unless a newline follows at once

    void append(std::string_view bytes);
    std::string shown() const;
  };

  // Puts open_ at the end of ended_.
  void end_line();

  std::deque<Line> ended_;
  Line open_;
};

// The last lines of a file, from its last 64 KiB; none if it cannot be read or is not a regular file.
std::vector<std::string> read_last_lines(const std::filesystem::path& file);

}  // namespace narrowcast::launcher
