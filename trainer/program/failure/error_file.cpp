#include "trainer/program/failure/error_file.h"

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>

namespace narrowcast::program {
namespace {

constexpr std::chrono::seconds kDelayOfBlame{2};  // A peer's death is noticed by its launcher well within it.

std::string time_of(const Failure& failure) {
  const auto now =
      std::chrono::system_clock::now() + (failure.code == kPeerFailed ? kDelayOfBlame : std::chrono::seconds(0));
  return std::to_string(std::chrono::duration_cast<std::chrono::seconds>(now.time_since_epoch()).count());
}

std::string text_of(const Failure& failure) {
  const nlohmann::json details = {{"py_callstack", failure.message}, {"timestamp", time_of(failure)}};
  const nlohmann::json text = {{"message", {{"message", failure.message}, {"extraInfo", details}}}};
  return text.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

FailureListener error_file_writer(const std::filesystem::path& file) {
  return [file](const Failure& failure) {
    if (file.empty()) {
      return;
    }
    std::filesystem::path unfinished = file;
    unfinished += ".tmp";
    std::ofstream stream(unfinished);
    stream << text_of(failure) << std::flush;
    std::error_code ignored;
    if (stream.good()) {
      std::filesystem::rename(unfinished, file, ignored);
    } else {
      std::filesystem::remove(unfinished, ignored);
    }
  };
}

}  // namespace narrowcast::program
