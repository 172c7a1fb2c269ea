#include "trainer/launcher/posix/output_relay.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <utility>

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
    const size_t space = kLongestLine - unfinished_.size();
    const size_t taken = std::min({newline, bytes.size(), space});
    unfinished_.append(bytes.substr(0, taken));
    const bool complete = taken == newline;
    bytes.remove_prefix(taken + (complete ? 1 : 0));
    if (complete || unfinished_.size() == kLongestLine) {
      lines += prefix_ + std::exchange(unfinished_, "") + "\n";
    }
  }
  return lines;
}

std::string LinePrefixer::finish() {
  return unfinished_.empty() ? "" : prefix_ + std::exchange(unfinished_, "") + "\n";
}

void OutputRelay::add(Tap tap) {
  if (tap.pipe.is_open()) {
    fcntl(tap.pipe.get(), F_SETFL, O_NONBLOCK);  // Affects only this end: the worker's has a separate file description.
    LinePrefixer lines(tap.prefix);
    Sink& sink = tap.kind == Kind::kOutput ? output_ : error_;
    sources_.push_back({.tap = std::move(tap), .lines = std::move(lines), .sink = sink});
  }
}

void OutputRelay::add_polls(std::vector<pollfd>& polls) const {
  for (const Source& source : sources_) {
    if (source.tap.pipe.is_open() && (!source.tap.shown || source.sink.pending.size() < kMostPending)) {
      polls.push_back({source.tap.pipe.get(), POLLIN, 0});
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
    if (source.tap.pipe.is_open() && is_ready(polls, source.tap.pipe.get())) {
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
  const ssize_t count = read(source.tap.pipe.get(), bytes, sizeof(bytes));
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) {
    return;
  }
  if (count > 0) {
    const std::string_view text(bytes, static_cast<size_t>(count));
    write_copy(source, text);
    if (source.tap.kind == Kind::kError) {
      source.last.push(text);
    }
    show(source, source.lines.push(text));
  } else {
    show(source, source.lines.finish());
    source.tap.pipe.close();
  }
}

void OutputRelay::show(Source& source, const std::string& lines) {
  if (source.tap.filtered != nullptr) {
    if (const int reason = source.tap.filtered->push(lines, source.tap.prefix); reason != 0) {
      report_end(source.tap.filtered->filter().file.string(), reason);
    }
  }
  if (source.tap.shown && !source.sink.closed) {
    source.sink.pending += lines;
  }
}

// A full disk ends the copy, not the job. It is reported once.
void OutputRelay::write_copy(Source& source, std::string_view bytes) {
  while (source.tap.copy.is_open() && !bytes.empty()) {
    const ssize_t count = write(source.tap.copy.get(), bytes.data(), bytes.size());
    if (count > 0) {
      bytes.remove_prefix(static_cast<size_t>(count));
    } else if (errno != EINTR) {
      report_end(source.tap.path.string(), errno);
      source.tap.copy.close();
    }
  }
}

// Writes at most PIPE_BUF bytes, which a pipe that polls as writable takes without blocking.
bool OutputRelay::write_some(Sink& sink) {
  const ssize_t count = write(sink.fd, sink.pending.data(), std::min(sink.pending.size(), size_t{PIPE_BUF}));
  if (count >= 0) {
    sink.pending.erase(0, static_cast<size_t>(count));
    return true;
  }
  if (errno == EAGAIN || errno == EINTR) {
    return true;
  }
  const int reason = errno;
  give_up(sink, reason);
  return reason != EPIPE;
}

void OutputRelay::give_up(Sink& sink, int reason) {
  sink.pending.clear();
  sink.closed = true;
  if (reason != EPIPE) {
    report_end(sink.name, reason);
  }
}

// Reports the end of `name` on standard error, or on standard output if standard error has ended.
void OutputRelay::report_end(const std::string& name, int reason) {
  Sink& open = error_.closed ? output_ : error_;
  if (!open.closed) {
    open.pending += "narrowcast-run: " + name + ": ends here: " + std::strerror(reason) + "\n";
  }
}

// One read empties a pipe, whose size is kReadSize.
void OutputRelay::catch_up(int64_t rank) {
  for (Source& source : sources_) {
    if (source.tap.rank == rank && source.tap.pipe.is_open()) {
      read_some(source);
    }
  }
}

// Shows the rest of a stream, including an unfinished line, after its last writer is gone.
void OutputRelay::drain(Source& source) {
  while (source.tap.pipe.is_open()) {
    pollfd entry = {source.tap.pipe.get(), POLLIN, 0};
    if (poll(&entry, 1, 0) != 1) {
      source.tap.pipe.close();  // A foreign process holds the other end.
      break;
    }
    read_some(source);
  }
  show(source, source.lines.finish());
}

void OutputRelay::finish_rank(int64_t rank) {
  for (auto source = sources_.begin(); source != sources_.end();) {
    if (source->tap.rank != rank) {
      ++source;
      continue;
    }
    drain(*source);
    source = sources_.erase(source);
  }
}

void OutputRelay::finish(std::chrono::milliseconds patience) {
  for (Source& source : sources_) {
    drain(source);
  }
  for (Sink* sink : {&output_, &error_, &output_}) {  // output_ twice: it reports the end of error_.
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
    if (source.tap.rank == rank && source.tap.kind == Kind::kError) {
      return source.last.lines();
    }
  }
  return {};
}

}  // namespace narrowcast::launcher
