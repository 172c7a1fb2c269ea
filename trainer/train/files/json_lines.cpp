#include "trainer/train/files/json_lines.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <filesystem>
#include <system_error>

namespace narrowcast::files {
namespace {

// Without O_NONBLOCK, opening a pipe that nobody reads from would wait for ever.
FileDescriptor open_for_appending(const std::string& path, JsonLinesMode mode) {
  const auto reason = [] { return std::generic_category().message(errno); };
  std::error_code ignored;  // What cannot be looked up cannot be opened either.
  TORCH_CHECK_VALUE(!std::filesystem::is_symlink(path, ignored), path,
                    ": cannot be written: it is a symbolic link, where a file is needed");
  const int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
  FileDescriptor file(::open(path.c_str(), flags, 0666));
  TORCH_CHECK_VALUE(file.is_open() || errno != ENXIO, path, ": cannot be written: it is not a regular file");
  TORCH_CHECK_VALUE(file.is_open(), path, ": cannot be written: ", reason());
  struct stat status = {};
  TORCH_CHECK_VALUE(::fstat(file.get(), &status) == 0, path, ": cannot be written: ", reason());
  TORCH_CHECK_VALUE(S_ISREG(status.st_mode), path, ": cannot be written: it is not a regular file");
  TORCH_CHECK_VALUE(mode == JsonLinesMode::kAppend || ::ftruncate(file.get(), 0) == 0, path,
                    ": cannot be written: ", reason());
  return file;
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
    : path_(path), descriptor_(open_for_appending(path, mode)) {}

void JsonLinesFile::append(const nlohmann::json& object) {
  TORCH_CHECK_VALUE(object.is_object(), path_, ": each line must be a JSON object, not ", object.type_name());
  write_fully(descriptor_, path_, to_line(object, path_));
}

}  // namespace narrowcast::files
