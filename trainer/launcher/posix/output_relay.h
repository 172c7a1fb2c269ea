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
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ops/common/file_descriptor.h"
#include "trainer/launcher/posix/filtered_log.h"
#include "trainer/launcher/posix/last_lines.h"

namespace narrowcast::launcher {

// Collects what one worker writes to one stream and gives back whole lines.
class LinePrefixer {
 public:
  explicit LinePrefixer(std::string prefix) : prefix_(std::move(prefix)) {}

  // The lines that `bytes` completes, each with the prefix and its newline. A line longer than kLongestLine is given
  // back as several of that size.
  std::string push(std::string_view bytes);

  // What is left when the stream ends: an unfinished line, made a whole one.
  std::string finish();

  static constexpr size_t kLongestLine = size_t{1} << 20;

 private:
  const std::string prefix_;
  std::string unfinished_;
};

// Reads the workers' pipes and writes to the launcher's two streams, to files, or to both.
class OutputRelay {
 public:
  enum class Kind { kOutput, kError };

  // What is read of a worker's stream, and where it goes.
  struct Tap {
    int64_t rank = 0;
    Kind kind = Kind::kOutput;
    bool shown = true;                           // on the launcher's own stream of that kind
    std::filesystem::path path = {};             // of `copy`, for messages
    FileDescriptor pipe = FileDescriptor();      // none: there is nothing to read
    FileDescriptor copy = FileDescriptor();      // a file that gets the same bytes; none: no file
    std::string prefix = {};                     // before each line that is shown
    std::shared_ptr<FilteredLog> filtered = {};  // gets some of the lines, with the prefix; none: null
  };

  // Writes to these descriptors, which stay the caller's.
  OutputRelay(int output, int error)
      : output_{.fd = output, .name = "standard output"}, error_{.fd = error, .name = "standard error"} {}

  OutputRelay(const OutputRelay&) = delete;
  OutputRelay& operator=(const OutputRelay&) = delete;

  // Reads a worker's stream from now on, if the tap has a pipe.
  void add(Tap tap);

  // Forgets all taps, and what was read of them.
  void forget() { sources_.clear(); }

  // Appends what to poll for.
  void add_polls(std::vector<pollfd>& polls) const;

  // Reads and writes what is ready. Returns false once, when the reader of standard output or error turned out to be
  // gone; what is meant for it is dropped from then on. So is what cannot be written for another reason, e.g. to a full
  // disk; the other stream says so, once.
  bool handle(const std::vector<pollfd>& polls);

  // After the last writer is gone: shows all that is left, unfinished lines too.
  // Gives up on a stream that takes nothing for `patience`.
  void finish(std::chrono::milliseconds patience);

  // The last lines of a rank's standard error, as LastLines has them.
  std::vector<std::string> last_error_lines(int64_t rank) const;

 private:
  // One of the launcher's own streams.
  struct Sink {
    int fd = -1;
    std::string name;
    std::string pending = {};
    bool closed = false;
  };
  // One of a worker's.
  struct Source {
    Tap tap;
    LinePrefixer lines;
    LastLines last = {};
    Sink& sink;
  };

  void read_some(Source& source);
  void write_copy(Source& source, std::string_view bytes);
  void show(Source& source, const std::string& lines);
  bool write_some(Sink& sink);
  void give_up(Sink& sink, int reason);
  void tell_end(const std::string& name, int reason);

  Sink output_;
  Sink error_;
  std::deque<Source> sources_;
};

}  // namespace narrowcast::launcher
