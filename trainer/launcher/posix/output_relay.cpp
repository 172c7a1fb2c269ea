#include "trainer/launcher/posix/output_relay.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

namespace narrowcast::launcher {
namespace {

constexpr size_t kMostPending = size_t{1} << 18;
constexpr size_t kReadSize = size_t{1} << 16;

bool is_ready(const std::vector<pollfd>& polls, int fd) {
  for (const pollfd& entry : polls) {
    if (entry.fd == fd && entry.revents != 0) {
      return true;
    }
  }
  return false;
}

}  // namespace

std::string LinePrefixer::push(std::string_view bytes) {
  std::string lines;
  while (!bytes.empty()) {
    const size_t newline = bytes.find('\n');
    const size_t room = kLongestLine - unfinished_.size();
    const size_t taken = std::min({newline, bytes.size(), room});
    unfinished_.append(bytes.substr(0, taken));
    const bool complete = taken == newline;
    bytes.remove_prefix(taken + (complete ? 1 : 0));
    if (complete || unfinished_.size() == kLongestLine) {
      lines += prefixed(std::move(unfinished_));
      unfinished_.clear();
    }
  }
  return lines;
}

std::string LinePrefixer::finish() {
  if (unfinished_.empty()) {
    return "";
  }
  std::string line = prefixed(std::move(unfinished_));
  unfinished_.clear();
  return line;
}

std::string LinePrefixer::prefixed(std::string line) {
  std::string result = prefix_ + line + "\n";
  last_lines_.push_back(std::move(line));
  if (last_lines_.size() > kRemembered) {
    last_lines_.pop_front();
  }
  return result;
}

void OutputRelay::add(int64_t rank, const std::string& prefix, Descriptor output, Descriptor error) {
  // Our ends alone: the workers' ends have file descriptions of their own.
  fcntl(output.get(), F_SETFL, O_NONBLOCK);
  fcntl(error.get(), F_SETFL, O_NONBLOCK);
  sources_.push_back({rank, std::move(output), LinePrefixer(prefix), output_});
  sources_.push_back({rank, std::move(error), LinePrefixer(prefix), error_});
}

void OutputRelay::add_polls(std::vector<pollfd>& polls) const {
  for (const Source& source : sources_) {
    if (source.pipe && source.sink.pending.size() < kMostPending) {
      polls.push_back({source.pipe.get(), POLLIN, 0});
    }
  }
  for (const Sink* sink : {&output_, &error_}) {
    if (!sink->pending.empty()) {
      polls.push_back({sink->fd, POLLOUT, 0});
    }
  }
}

bool OutputRelay::handle(const std::vector<pollfd>& polls) {
  for (Source& source : sources_) {
    if (source.pipe && is_ready(polls, source.pipe.get())) {
      read_some(source);
    }
  }
  bool open = true;
  for (Sink* sink : {&output_, &error_}) {
    if (!sink->pending.empty() && is_ready(polls, sink->fd)) {
      open = write_some(*sink) && open;
    }
  }
  return open;
}

// Reads once; at the end of the stream, shows its unfinished line and closes it.
void OutputRelay::read_some(Source& source) {
  char bytes[kReadSize];
  const ssize_t count = read(source.pipe.get(), bytes, sizeof(bytes));
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) {
    return;
  }
  std::string lines;
  if (count > 0) {
    lines = source.lines.push({bytes, static_cast<size_t>(count)});
  } else {
    lines = source.lines.finish();
    source.pipe.close();
  }
  if (!source.sink.closed) {
    source.sink.pending += lines;
  }
}

// Writes what surely does not block: a pipe that polls as writable takes PIPE_BUF bytes.
bool OutputRelay::write_some(Sink& sink) {
  const ssize_t count = write(sink.fd, sink.pending.data(), std::min(sink.pending.size(), size_t{PIPE_BUF}));
  if (count >= 0) {
    sink.pending.erase(0, static_cast<size_t>(count));
    return true;
  }
  if (errno == EAGAIN || errno == EINTR) {
    return true;
  }
  sink.pending.clear();
  sink.closed = true;
  return false;
}

void OutputRelay::finish(std::chrono::milliseconds patience) {
  for (Source& source : sources_) {
    while (source.pipe) {
      std::vector<pollfd> polls = {{source.pipe.get(), POLLIN, 0}};
      if (poll(polls.data(), 1, 0) != 1) {
        source.pipe.close();  // Some process that is not ours holds the other end.
        break;
      }
      read_some(source);
    }
    if (!source.sink.closed) {
      source.sink.pending += source.lines.finish();
    }
  }
  for (Sink* sink : {&output_, &error_}) {
    while (!sink->pending.empty()) {
      pollfd entry = {sink->fd, POLLOUT, 0};
      if (poll(&entry, 1, static_cast<int>(patience.count())) != 1) {
        break;
      }
      write_some(*sink);
    }
  }
}

std::vector<std::string> OutputRelay::last_error_lines(int64_t rank) const {
  for (const Source& source : sources_) {
    if (source.rank == rank && &source.sink == &error_) {
      return {source.lines.last_lines().begin(), source.lines.last_lines().end()};
    }
  }
  return {};
}

}  // namespace narrowcast::launcher
