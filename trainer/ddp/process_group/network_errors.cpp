#include <narrowcast/network_errors.h>

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <typeinfo>
#include <utility>

#include "ops/common/backend_errors.h"
#include "ops/common/error_message.h"

namespace narrowcast {
namespace {

using Clock = std::chrono::steady_clock;

struct Step {
  std::string name;
  Clock::time_point begin;
};

// The steps of all ranks of the process, by rank and by the order in which they began. In tests, ranks are threads.
struct Steps {
  std::mutex mutex;
  int64_t next = 0;
  std::map<std::pair<int64_t, int64_t>, Step> current;
};

// Never destroyed: threads that wait for a hanging store are left behind, and may run while static objects are
// destroyed.
Steps& steps() {
  static Steps& instance = *std::make_unique<Steps>().release();
  return instance;
}

// Returns Gloo's reason from "[/path/pair.cc:534] reason". LibTorch may append lines with explanations.
std::string reason(const std::string& message) {
  const std::string line = first_line(message);
  const size_t end = line.find("] ");
  const bool has_place = !line.empty() && line.front() == '[' && end != std::string::npos;
  return has_place ? line.substr(end + 2) : line;
}

// Mangled names of Gloo's exceptions begin with their namespace.
bool is_gloo_error(const std::exception& error) {
  return std::string_view(typeid(error).name()).substr(0, 6) == "N4gloo";
}

// LibTorch catches Gloo's exception when ranks connect, and throws a plain c10::Error with this text before its
// message.
constexpr std::string_view kOfConnecting = "Gloo connectFullMesh failed with ";

// Gloo says this of each failed connection, also if it was refused: then nothing has timed out, but the rank is gone.
constexpr std::string_view kConnecting = "timed out connecting: ";

std::string reason_of_connecting(const std::string& message) {
  const std::string text = reason(message);
  const bool is_refused = text.starts_with(kConnecting) && text.find("refused") != std::string::npos;
  return is_refused ? "cannot connect: " + text.substr(kConnecting.size()) : text;
}

bool names_a_rank(const std::string& message) { return message.starts_with("rank "); }

}  // namespace

StepScope::StepScope(int64_t rank, std::string step) : rank_(rank), number_(0) {
  const std::lock_guard<std::mutex> lock(steps().mutex);
  number_ = steps().next++;
  steps().current[{rank_, number_}] = {std::move(step), Clock::now()};
}

StepScope::~StepScope() {
  const std::lock_guard<std::mutex> lock(steps().mutex);
  steps().current.erase({rank_, number_});
}

std::string describe_current_step(int64_t rank) {
  const std::lock_guard<std::mutex> lock(steps().mutex);
  const auto after = steps().current.lower_bound({rank + 1, 0});
  if (after == steps().current.begin() || std::prev(after)->first.first != rank) {
    return "is not in a collective";
  }
  const Step& step = std::prev(after)->second;
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - step.begin).count();
  return c10::str("has been in ", step.name, " for ", seconds, " s");
}

void rethrow_network_error(const std::exception_ptr& error, int64_t rank, const std::string& step) {
  std::string message;
  try {
    std::rethrow_exception(error);
  } catch (const c10::DistError& dist_error) {
    message = dist_error.what_without_backtrace();
    if (names_a_rank(message)) {
      throw;
    }
  } catch (const c10::Error& plain) {
    message = plain.what_without_backtrace();
    if (!message.starts_with(kOfConnecting)) {
      throw;
    }
    message = reason_of_connecting(message.substr(kOfConnecting.size()));
  } catch (const std::exception& other) {
    if (!is_gloo_error(other)) {
      throw;
    }
    message = other.what();
  }
  throw_backend_error(rank, step, reason(message));
}

bool is_time_out(const std::exception& error) {
  const auto* const backend_error = dynamic_cast<const c10::DistBackendError*>(&error);
  if (backend_error == nullptr) {
    return false;
  }
  std::string message = backend_error->what_without_backtrace();
  std::transform(message.begin(), message.end(), message.begin(), [](unsigned char c) { return std::tolower(c); });
  return message.find("timed out") != std::string::npos || message.find("time-out") != std::string::npos;
}

}  // namespace narrowcast
