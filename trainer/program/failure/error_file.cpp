#include "trainer/program/failure/error_file.h"

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>

namespace narrowcast::program {
namespace {

constexpr std::chrono::seconds kDelayOfBlame{2};  // A peer's death is noticed by its launcher well within it.

int64_t seconds_of(const Failure& failure) {
  const auto now =
      std::chrono::system_clock::now() + (failure.code == kPeerFailed ? kDelayOfBlame : std::chrono::seconds(0));
  return std::chrono::duration_cast<std::chrono::seconds>(now.time_since_epoch()).count();
}

}  // namespace

std::string read_error_message(const std::filesystem::path& file) {
  std::ifstream stream(file);
  const auto json = nlohmann::json::parse(stream, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("message")) {
    return "";
  }
  const auto& message = json["message"];
  if (message.is_object() && message.contains("message") && message["message"].is_string()) {
    return message["message"];
  }
  return message.is_string() ? std::string(message) : "";
}

bool write_error_file(const std::filesystem::path& file, const std::string& message, int64_t seconds) {
  const nlohmann::json details = {{"py_callstack", message}, {"timestamp", std::to_string(seconds)}};
  const nlohmann::json content = {{"message", {{"message", message}, {"extraInfo", details}}}};
  std::filesystem::path unfinished = file;
  unfinished += ".tmp";
  std::ofstream stream(unfinished);
  stream << content.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  stream.close();
  std::error_code error;
  if (stream) {
    std::filesystem::rename(unfinished, file, error);
  }
  if (!stream || error) {
    std::filesystem::remove(unfinished, error);
    return false;
  }
  return true;
}

FailureListener error_file_writer(const std::filesystem::path& file) {
  return [file](const Failure& failure) {
    if (!file.empty()) {
      write_error_file(file, failure.message, seconds_of(failure));
    }
  };
}

}  // namespace narrowcast::program
