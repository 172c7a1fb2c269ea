#include "trainer/launcher/failure/error_file.h"

#include <c10/util/Exception.h>

#include <fstream>
#include <nlohmann/json.hpp>

namespace narrowcast::launcher {

std::string read_error_message(const std::filesystem::path& error_file) {
  std::ifstream file(error_file);
  const auto json = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("message")) {
    return "";
  }
  const auto& message = json["message"];
  if (message.is_object() && message.contains("message") && message["message"].is_string()) {
    return message["message"];
  }
  return message.is_string() ? std::string(message) : "";
}

void write_error_file(const std::filesystem::path& error_file, const std::string& message, int64_t seconds) {
  const nlohmann::json extra = {{"py_callstack", message}, {"timestamp", std::to_string(seconds)}};
  const nlohmann::json content = {{"message", {{"message", message}, {"extraInfo", extra}}}};
  const std::filesystem::path temporary = error_file.string() + ".part";
  std::ofstream file(temporary);
  // Workers may have written bytes that are no UTF-8.
  file << content.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  file.close();
  std::error_code error;
  std::filesystem::rename(temporary, error_file, error);
  TORCH_CHECK(file && !error, error_file.string(), ": cannot be written");
}

}  // namespace narrowcast::launcher
