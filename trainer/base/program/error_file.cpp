#include "trainer/base/program/error_file.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>

#include "trainer/base/files/file_descriptor.h"
#include "trainer/base/files/input_file.h"
#include "trainer/base/files/json.h"

namespace narrowcast::program {
namespace {

constexpr std::chrono::seconds kDelayOfBlame{2};  // A peer's death is noticed by its launcher well within it.

int64_t seconds_of(const Failure& failure) {
  const auto now =
      std::chrono::system_clock::now() + (failure.code == kPeerFailed ? kDelayOfBlame : std::chrono::seconds(0));
  return std::chrono::duration_cast<std::chrono::seconds>(now.time_since_epoch()).count();
}

// Nothing if the file is not there, is no regular file or is longer than any error.
std::string text_of(const std::filesystem::path& file) {
  try {
    return files::read_file(file, {.links = files::Links::kRefuse, .most_bytes = files::JsonLimits().bytes});
  } catch (const c10::Error&) {
    return "";
  }
}

// Returns false if there is such a file already or it cannot be written.
bool write_new(const std::filesystem::path& path, std::string_view bytes) {
  files::FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  while (file.is_open() && !bytes.empty()) {
    const ssize_t written = ::write(file.get(), bytes.data(), bytes.size());
    if (written < 0 && errno != EINTR) {
      return false;
    }
    bytes.remove_prefix(static_cast<size_t>(std::max<ssize_t>(0, written)));
  }
  return file.is_open() && file.close();
}

}  // namespace

std::string read_error_message(const std::filesystem::path& file) {
  const nlohmann::json json = files::try_parse_json(text_of(file)).value;
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
  std::error_code error;
  const auto status = std::filesystem::symlink_status(file, error);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    return false;  // What is renamed over a device takes it away, for all programs.
  }
  const nlohmann::json details = {{"py_callstack", message}, {"timestamp", std::to_string(seconds)}};
  const nlohmann::json content = {{"message", {{"message", message}, {"extraInfo", details}}}};
  std::filesystem::path unfinished = file;
  unfinished += ".tmp";
  std::filesystem::remove(unfinished, error);  // What is there is none of ours: another process, or a pipe to wait for.
  bool is_written = write_new(unfinished, content.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  if (is_written) {
    std::filesystem::rename(unfinished, file, error);
    is_written = !error;
  }
  if (!is_written) {
    std::filesystem::remove(unfinished, error);
  }
  return is_written;
}

FailureListener error_file_writer(const std::filesystem::path& file) {
  return [file](const Failure& failure) {
    if (!file.empty()) {
      write_error_file(file, failure.message, seconds_of(failure));
    }
  };
}

}  // namespace narrowcast::program
