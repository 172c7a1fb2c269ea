// What workers write, shown by the launcher: whole lines, never mixed, standard
// output on standard output and standard error on standard error.
//
// Nothing here blocks. A worker's pipe is only read while the launcher's own stream
// keeps up, so a reader that stops (a pager) stops the workers, as it would without us.
#pragma once

#include <poll.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/launcher/posix/descriptor.h"

namespace narrowcast::launcher {

// Collects what one worker writes to one stream and gives back whole lines.
class LinePrefixer {
 public:
  explicit LinePrefixer(std::string prefix) : prefix_(std::move(prefix)) {}

  // The lines that `bytes` completes, each with the prefix and its newline. A line
  // longer than kLongestLine is given back in pieces of that size, as lines.
  std::string push(std::string_view bytes);

  // What is left when the stream ends: an unfinished line, made a whole one.
  std::string finish();

  // The last lines given back, without the prefix, oldest first, at most kRemembered.
  const std::deque<std::string>& last_lines() const { return last_lines_; }

  static constexpr size_t kLongestLine = size_t{1} << 20;
  static constexpr size_t kRemembered = 10;

 private:
  std::string prefixed(std::string line);

  const std::string prefix_;
  std::string unfinished_;
  std::deque<std::string> last_lines_;
};

// Reads the workers' pipes and writes to the launcher's two streams.
class OutputRelay {
 public:
  // Writes to these descriptors, which stay the caller's.
  OutputRelay(int output, int error) : output_{.fd = output}, error_{.fd = error} {}

  OutputRelay(const OutputRelay&) = delete;
  OutputRelay& operator=(const OutputRelay&) = delete;

  // Reads a worker's streams from these pipes from now on; lines begin with `prefix`.
  void add(int64_t rank, const std::string& prefix, Descriptor output, Descriptor error);

  // Appends what to poll for.
  void add_polls(std::vector<pollfd>& polls) const;

  // Reads and writes what is ready. Returns false once, when standard output or
  // error turned out to be closed; what is meant for it is dropped from then on.
  bool handle(const std::vector<pollfd>& polls);

  // After the last writer is gone: shows all that is left, unfinished lines too.
  // Gives up on a stream that takes nothing for `patience`.
  void finish(std::chrono::milliseconds patience);

  // The last lines of a rank's standard error, oldest first.
  std::vector<std::string> last_error_lines(int64_t rank) const;

 private:
  // One of the launcher's own streams.
  struct Sink {
    int fd = -1;
    std::string pending = {};
    bool closed = false;
  };
  // One of a worker's.
  struct Source {
    int64_t rank;
    Descriptor pipe;
    LinePrefixer lines;
    Sink& sink;
  };

  static void read_some(Source& source);
  static bool write_some(Sink& sink);

  Sink output_;
  Sink error_;
  std::deque<Source> sources_;
};

}  // namespace narrowcast::launcher
