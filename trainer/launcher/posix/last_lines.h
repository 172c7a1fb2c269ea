// The last lines of a worker's output. All texts are cut, so that a failure report has a bounded size for any output.
#pragma once

#include <cstddef>
#include <deque>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace narrowcast::launcher {

// Number of a failed rank's last lines that are kept.
constexpr size_t kMostLines = 10;

// Largest size of one text in a report (a line or an error message), in bytes.
constexpr size_t kLongestText = 4096;

// Returns `text`, or its beginning and the number of omitted bytes, at most kLongestText bytes in all. UTF-8 is cut
// between characters.
std::string cut_text(const std::string& text);

// The last lines of a stream. A carriage return also ends a line, so that text which overwrites the line on a terminal
// does not hide it. If several such lines follow each other, as a progress bar writes, only the last is kept.
class LastLines {
 public:
  void push(std::string_view bytes);

  // Returns at most kMostLines lines, oldest first, each cut by cut_text(). An unfinished line counts.
  std::vector<std::string> lines() const;

 private:
  // The beginning of a line, and its whole size in bytes.
  struct Line {
    std::string text = {};
    size_t size = 0;
    bool returned = false;  // ended by a carriage return, unless a newline follows at once

    void append(std::string_view bytes);
    std::string shown() const;
  };

  // Moves open_ to the end of ended_.
  void end_line();

  std::deque<Line> ended_;
  Line open_;
};

// Returns the last lines within the last 64 KiB of a file; none if it cannot be read or is not a regular file.
std::vector<std::string> read_last_lines(const std::filesystem::path& file);

}  // namespace narrowcast::launcher
