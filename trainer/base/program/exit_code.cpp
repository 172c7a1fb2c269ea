#include "trainer/base/program/exit_code.h"

#include <c10/util/Exception.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <filesystem>
#include <iostream>
#include <new>
#include <string>

#include <narrowcast/errors.h>
#include "ops/error_message.h"
#include "trainer/base/files/printable.h"
#include "trainer/base/open_files.h"
#include "trainer/base/program/process_setup.h"

namespace narrowcast::program {
namespace {

bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

// Whether a text that ranks agreed on, "FOLDER: rank 1: FILE: cannot be written", tells what happened to one of them,
// perhaps not to this one. Errors of the network begin with this process's own rank.
bool tells_of_some_rank(const Failure& failure) {
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

// The limit that was reached, where it was this process's own and not the system's (ENFILE).
std::string limit_of_open_files(const Failure& failure) {
  if (contains(failure.message, std::strerror(ENFILE)) || tells_of_some_rank(failure)) {
    return "";
  }
  return " (RLIMIT_NOFILE: at most " + std::to_string(network::open_file_limit()) + " files may be open)";
}

// What this process may not have more of is neither a peer's fault nor a bug, though a library that runs into it may
// say so in the words of either. LibTorch's allocator throws no class of its own.
Failure blame_limits(Failure failure) {
  if (contains(failure.message, std::strerror(EMFILE))) {  // It is part of ENFILE's text, too.
    const std::string limit = limit_of_open_files(failure);
    failure.code = kWrongUse;
    failure.message = first_line(failure.message) + limit;
  } else if (const size_t allocator = failure.message.find("DefaultCPUAllocator: can't allocate memory");
             allocator != std::string::npos) {
    failure.code = kWrongUse;
    failure.message = "not enough memory: " + failure.message.substr(allocator);
  }
  return failure;
}

// What the exception that is being handled means.
Failure classify() {
  try {
    throw;
  } catch (const CorruptInputError& error) {
    return {kCorruptInput, error.what_without_backtrace()};
  } catch (const OutputError& error) {
    return {kOutputFailed, error.what_without_backtrace()};
  } catch (const c10::DistError& error) {
    return {kPeerFailed, error.what_without_backtrace()};
  } catch (const c10::ValueError& error) {
    return {kWrongUse, error.what_without_backtrace()};
  } catch (const c10::TypeError& error) {
    return {kWrongUse, error.what_without_backtrace()};
  } catch (const c10::OutOfMemoryError& error) {
    return {kWrongUse, error.what_without_backtrace()};
  } catch (const c10::Error& error) {
    return {kInternalError, error.what_without_backtrace()};
  } catch (const std::filesystem::filesystem_error& error) {  // Of a path that is not as we need it.
    return {kWrongUse, error.what()};
  } catch (const std::bad_alloc&) {
    return {kWrongUse, "not enough memory (std::bad_alloc)"};
  } catch (const std::exception& error) {
    return {kInternalError, error.what()};
  }
}

}  // namespace

int run_program(std::string_view program, const std::function<int()>& body, const FailureListener& on_failure) {
  set_up_process();
  try {
    return body();
  } catch (const std::exception&) {
    Failure failure = blame_limits(classify());
    failure.message = printable(first_line(failure.message));  // What users need.
    std::cerr << program << ": " << failure.message << std::endl;
    if (on_failure) {
      on_failure(failure);
    }
    return failure.code;
  }
}

}  // namespace narrowcast::program
