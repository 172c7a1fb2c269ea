#include "ops/collectives/refusal.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace narrowcast::collectives {
namespace {

constexpr char kNone = '\0';
constexpr char kWrongValue = 'V';
constexpr char kWrongType = 'T';
constexpr size_t kLongestReason = static_cast<size_t>(kRefusalBytes) - 2;

[[noreturn]] void throw_with(const Refusal& refusal, const std::string& message) {
  TORCH_CHECK_TYPE(!refusal.wrong_type, message);
  TORCH_CHECK_VALUE(false, message);
}

}  // namespace

std::optional<Refusal> refusal_of(const std::function<void()>& check) {
  try {
    check();
  } catch (const c10::TypeError& error) {
    return Refusal{true, error.what_without_backtrace()};
  } catch (const c10::Error& error) {
    return Refusal{false, error.what_without_backtrace()};
  }
  return std::nullopt;
}

void write_refusal(const std::optional<Refusal>& refusal, uint8_t* bytes) {
  std::fill_n(bytes, kRefusalBytes, static_cast<uint8_t>(kNone));
  if (refusal.has_value()) {
    *bytes = static_cast<uint8_t>(refusal->wrong_type ? kWrongType : kWrongValue);
    const std::string reason = refusal->reason.substr(0, kLongestReason);
    std::copy(reason.begin(), reason.end(), bytes + 1);
  }
}

std::optional<Refusal> read_refusal(const uint8_t* bytes) {
  if (*bytes == static_cast<uint8_t>(kNone)) {
    return std::nullopt;
  }
  const uint8_t* const end = std::find(bytes + 1, bytes + kRefusalBytes, uint8_t{0});
  return Refusal{*bytes == static_cast<uint8_t>(kWrongType), std::string(bytes + 1, end)};
}

void throw_refusal(const Refusal& refusal, const std::string& call, int64_t rank) {
  throw_with(refusal, call + " on rank " + std::to_string(rank) + ": " + refusal.reason);
}

void throw_untold(const Refusal& refusal, const std::string& failure) {
  throw_with(refusal, refusal.reason + "; the other ranks could not be told: " + failure);
}

}  // namespace narrowcast::collectives
