// Shows the workers' output as whole lines that are never mixed: standard output on standard output, standard error on
// standard error.
//
// No call blocks. A worker's pipe is read only while the launcher's stream keeps up. A reader that stops, such as a
// pager, therefore stops the workers, as it would without the launcher.
#pragma once

#include <poll.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ops/common/file_descriptor.h"
#include "trainer/launcher/posix/filtered_log.h"
#include "trainer/launcher/posix/last_lines.h"

namespace narrowcast::launcher {

// Splits one worker's stream into whole lines.
class LinePrefixer {
 public:
  explicit LinePrefixer(std::string prefix) : prefix_(std::move(prefix)) {}

  // Returns the lines that `bytes` completes, each with the prefix and a newline. A line longer than kLongestLine is
  // returned as several of that size.
  std::string push(std::string_view bytes);

  // Returns the unfinished line at the end of the stream, as a whole line.
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

  // A worker's stream and its targets.
  struct Tap {
    int64_t rank = 0;
    Kind kind = Kind::kOutput;
    bool shown = true;                           // on the launcher's own stream of that kind
    std::filesystem::path path = {};             // of `copy`, for messages
    FileDescriptor pipe = FileDescriptor();      // not open: nothing to read
    FileDescriptor copy = FileDescriptor();      // a file with the same bytes; not open: none
    std::string prefix = {};                     // before each line that is shown
    std::shared_ptr<FilteredLog> filtered = {};  // a file with some of the lines and the prefix, or null
  };

  // Writes to these descriptors, which the caller owns.
  OutputRelay(int output, int error)
      : output_{.fd = output, .name = "standard output"}, error_{.fd = error, .name = "standard error"} {}

  OutputRelay(const OutputRelay&) = delete;
  OutputRelay& operator=(const OutputRelay&) = delete;

  // Reads a worker's stream from now on, if the tap has a pipe.
  void add(Tap tap);

  // Reads what the pipes of a rank hold now. After its end the rank's output is then known, except that of processes
  // that it left.
  void catch_up(int64_t rank);

  // Shows the rest of a rank's output, including unfinished lines, and forgets its taps.
  void finish_rank(int64_t rank);

  // Forgets all taps and their output.
  void forget() { sources_.clear(); }

  // Appends the descriptors to poll.
  void add_polls(std::vector<pollfd>& polls) const;

  // Reads and writes all ready descriptors. Returns false once, when the reader of standard output or error is gone;
  // output for it is dropped from then on. Output that cannot be written for another reason, e.g. to a full disk, is
  // dropped too: the other stream shows one message about it.
  bool handle(const std::vector<pollfd>& polls);

  // Shows all remaining output, including unfinished lines, after the last writer is gone. Gives up on a stream that
  // accepts nothing for `patience`.
  void finish(std::chrono::milliseconds patience);

  // Returns the last lines of a rank's standard error (LastLines).
  std::vector<std::string> last_error_lines(int64_t rank) const;

 private:
  // One of the launcher's streams.
  struct Sink {
    int fd = -1;
    std::string name;
    std::string pending = {};
    bool closed = false;
  };
  // One of a worker's streams.
  struct Source {
    Tap tap;
    LinePrefixer lines;
    LastLines last = {};
    Sink& sink;
  };

  void read_some(Source& source);
  void drain(Source& source);
  void write_copy(Source& source, std::string_view bytes);
  void show(Source& source, const std::string& lines);
  bool write_some(Sink& sink);
  void give_up(Sink& sink, int reason);
  void report_end(const std::string& name, int reason);

  Sink output_;
  Sink error_;
  std::list<Source> sources_;
};

}  // namespace narrowcast::launcher
