#include "trainer/base/process/error_file.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>

#include "ops/common/file_descriptor.h"
#include "trainer/base/files/json.h"
#include "trainer/base/files/open_file.h"

namespace narrowcast::program {
namespace {

// The file's content; empty if the file does not exist, is not a regular file or is longer than any error.
std::string text_of(const std::filesystem::path& file) {
  try {
    return files::read_file(file, {.links = files::Links::kRefuse, .most_bytes = files::JsonLimits().bytes});
  } catch (const c10::Error&) {
    return "";
  }
}

// Returns false if the file exists already or cannot be written.
bool write_new(const std::filesystem::path& path, std::string_view bytes) {
  FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
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

WorkerError read_error_file(const std::filesystem::path& file) {
  const nlohmann::json json = files::try_parse_json(text_of(file)).value;
  if (!json.is_object() || !json.contains("message")) {
    return {};
  }
  const auto& written = json["message"];
  const nlohmann::json message = written.is_object() && written.contains("message") ? written["message"] : written;
  if (!message.is_string()) {
    return {};
  }
  const bool is_final = json.value("restart", nlohmann::json()) == false;
  return {.message = message.get<std::string>(),
          .is_final = is_final,
          .is_misfit = is_final && json.value("misfit", nlohmann::json()) == true};
}

bool write_error_file(const std::filesystem::path& file, const WorkerError& written, int64_t seconds) {
  std::error_code error;
  const auto status = std::filesystem::symlink_status(file, error);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    return false;  // Renaming a file over a device removes the device for all programs.
  }
  const nlohmann::json details = {{"py_callstack", written.message}, {"timestamp", std::to_string(seconds)}};
  nlohmann::json content = {{"message", {{"message", written.message}, {"extraInfo", details}}}};
  if (written.is_final) {
    content["restart"] = false;
  }
  if (written.is_final && written.is_misfit) {
    content["misfit"] = true;
  }
  std::filesystem::path unfinished = file;
  unfinished += ".tmp";
  std::filesystem::remove(unfinished, error);  // A file there is not ours, and might be a pipe, which would block.
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

}  // namespace narrowcast::program
