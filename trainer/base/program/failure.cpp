#include "trainer/base/program/failure.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <filesystem>
#include <iostream>
#include <new>
#include <string>
#include <string_view>

#include <narrowcast/errors.h>
#include "ops/common/error_message.h"
#include "ops/common/text.h"
#include "trainer/base/process/process_limits.h"

namespace narrowcast::program {
namespace {

bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

// Whether the message is a text on which ranks agreed, "FOLDER: rank 1: FILE: cannot be written". Its failure may be
// another rank's. Errors of the network begin with this process's own rank.
bool names_some_rank(const Failure& failure) {
  constexpr std::string_view kRank = "rank ";
  const std::string& text = failure.message;
  for (size_t at = text.find(kRank); at != std::string::npos; at = text.find(kRank, at + 1)) {
    const size_t number = at + kRank.size();
    const size_t end = text.find_first_not_of("0123456789", number);
    if (end != std::string::npos && end > number && text.compare(end, 2, ": ") == 0) {
      return failure.code != kPeerFailed;
    }
  }
  return false;
}

// The limit that was reached, if it was this process's limit and not the system's (ENFILE).
std::string limit_of_open_files(const Failure& failure) {
  if (contains(failure.message, std::strerror(ENFILE)) || names_some_rank(failure)) {
    return "";
  }
  return " (RLIMIT_NOFILE: at most " + std::to_string(network::open_file_limit()) + " files may be open)";
}

// Corrects the class of failures at a limit of this process. They are neither a peer's fault nor a bug, although a
// library that reaches the limit may report them in that way. LibTorch's allocator does not throw a separate class.
Failure blame_limits(Failure failure) {
  if (contains(failure.message, std::strerror(EMFILE))) {  // ENFILE's text contains it as well.
    const std::string limit = limit_of_open_files(failure);
    failure.code = kWrongUse;
    failure.message = first_line(failure.message) + limit;
    failure.is_final = false;
  } else if (const size_t allocator = failure.message.find("DefaultCPUAllocator: can't allocate memory");
             allocator != std::string::npos) {
    failure.code = kWrongUse;
    failure.is_final = false;
    failure.message = "not enough memory: " + failure.message.substr(allocator);
  }
  return failure;
}

// The failure for the exception that is being handled.
Failure classify() {
  try {
    throw;
  } catch (const CorruptInputError& error) {
    return {kCorruptInput, error.what_without_backtrace()};
  } catch (const OutputError& error) {
    return {kOutputFailed, error.what_without_backtrace()};
  } catch (const ReplicasDifferError& error) {
    return {kCheckFailed, error.what_without_backtrace()};
  } catch (const c10::DistError& error) {
    return {kPeerFailed, error.what_without_backtrace()};
  } catch (const c10::ValueError& error) {
    return {kWrongUse, error.what_without_backtrace(), /*is_final=*/true};
  } catch (const c10::TypeError& error) {
    return {kWrongUse, error.what_without_backtrace(), /*is_final=*/true};
  } catch (const c10::OutOfMemoryError& error) {
    return {kWrongUse, error.what_without_backtrace()};
  } catch (const c10::Error& error) {
    return {kInternalError, error.what_without_backtrace()};
  } catch (const std::filesystem::filesystem_error& error) {  // The path is not as required.
    return {kWrongUse, error.what()};
  } catch (const std::bad_alloc&) {
    return {kWrongUse, "not enough memory (std::bad_alloc)"};
  } catch (const std::exception& error) {
    return {kInternalError, error.what()};
  }
}

constexpr std::chrono::seconds kDelayOfBlame{2};  // Launchers notice the death of a worker well within this time.

int64_t seconds_of(const Failure& failure) {
  const auto now =
      std::chrono::system_clock::now() + (failure.code == kPeerFailed ? kDelayOfBlame : std::chrono::seconds(0));
  return std::chrono::duration_cast<std::chrono::seconds>(now.time_since_epoch()).count();
}

// A process reports one failure.
std::atomic<bool> is_reported = false;

void report(std::string_view program, const Failure& failure, const FailureListener& on_failure) {
  std::cerr << program << ": " << failure.message << std::endl;
  if (on_failure) {
    on_failure(failure);
  }
}

[[noreturn]] void wait_for_end() {
  for (;;) ::pause();
}

}  // namespace

int run_program(std::string_view program, const std::function<int()>& body, const FailureListener& on_failure) {
  set_up_process();
  is_reported = false;
  try {
    return body();
  } catch (const std::exception&) {
    Failure failure = blame_limits(classify());
    failure.message = printable(first_line(failure.message));  // Users need only this line.
    if (is_reported.exchange(true)) {
      wait_for_end();
    }
    report(program, failure, on_failure);
    return failure.code;
  }
}

ExitCode report_failure(std::string_view program, const Failure& failure, const FailureListener& on_failure) {
  if (is_reported.exchange(true)) {
    wait_for_end();
  }
  report(program, {failure.code, printable(first_line(failure.message)), failure.is_final}, on_failure);
  return failure.code;
}

FailureListener error_file_writer(const std::filesystem::path& file) {
  return [file](const Failure& failure) {
    if (!file.empty()) {
      write_error_file(file, {failure.message, failure.is_final}, seconds_of(failure));
    }
  };
}

}  // namespace narrowcast::program
