#include "trainer/files/json_lines.h"

#include <c10/util/Exception.h>
#include <fcntl.h>

#include <cerrno>
#include <cmath>
#include <system_error>

namespace narrowcast::files {
namespace {

int open_flags(JsonLinesMode mode) {
  const int common = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC;
  return mode == JsonLinesMode::kReplace ? common | O_TRUNC : common;
}

// A copy in which numbers that JSON cannot write are strings.
nlohmann::json with_named_specials(const nlohmann::json& value) {
  if (value.is_number_float() && !std::isfinite(value.get<double>())) {
    const double number = value.get<double>();
    return std::isnan(number) ? "NaN" : number > 0 ? "Infinity" : "-Infinity";
  }
  if (!value.is_structured()) {
    return value;
  }
  nlohmann::json copy = value;
  for (nlohmann::json& element : copy) {
    element = with_named_specials(element);
  }
  return copy;
}

std::string to_line(const nlohmann::json& object, const std::string& path) {
  try {
    return with_named_specials(object).dump() + "\n";
  } catch (const nlohmann::json::type_error&) {
    TORCH_CHECK_VALUE(false, path, ": cannot be written: a string of the object is not UTF-8");
  }
}

}  // namespace

JsonLinesFile::JsonLinesFile(const std::string& path, JsonLinesMode mode)
    : path_(path), descriptor_(::open(path.c_str(), open_flags(mode), 0666)) {
  TORCH_CHECK_VALUE(descriptor_.is_open(), path, ": cannot be written: ", std::generic_category().message(errno));
}

void JsonLinesFile::append(const nlohmann::json& object) {
  TORCH_CHECK_VALUE(object.is_object(), path_, ": each line must be a JSON object, not ", object.type_name());
  write_fully(descriptor_, path_, to_line(object, path_));
}

}  // namespace narrowcast::files
