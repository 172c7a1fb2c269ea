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

// The last lines that a stream showed on a terminal: what overwrites a line from its beginning, as a progress bar does
// with a carriage return, takes its place.
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

    void append(std::string_view bytes);
    std::string shown() const;
  };

  std::deque<Line> ended_;
  Line open_;
  bool returned_ = false;  // a carriage return was last: what follows takes the place of open_
};

// The last lines of a file, from its last 64 KiB; none if it cannot be read.
std::vector<std::string> read_last_lines(const std::filesystem::path& file);

}  // namespace narrowcast::launcher
