#include "trainer/train/files/file_io.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <utility>

#include <narrowcast/errors.h>
#include "ops/common/file_descriptor.h"
#include "trainer/base/files/json.h"
#include "trainer/base/files/open_file.h"
#include "trainer/base/process/failpoint.h"

namespace narrowcast::files {
namespace {

std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> make_context() { return {EVP_MD_CTX_new(), EVP_MD_CTX_free}; }

std::string to_hex(const unsigned char* bytes, size_t count) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (size_t i = 0; i < count; ++i) {
    text += kDigits[bytes[i] >> 4];
    text += kDigits[bytes[i] & 15];
  }
  return text;
}

// Unique among the processes of this machine and the files of this process.
std::string temporary_name(const std::string& path) {
  static std::atomic<int64_t> counter{0};
  return path + ".tmp." + std::to_string(::getpid()) + "." + std::to_string(counter.fetch_add(1));
}

std::string folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path();
  return folder.empty() ? "." : folder;
}

// An absolute path without links, "." and "..", and without a slash at its end.
std::filesystem::path whole(const std::string& path) {
  std::error_code ignored;  // A path that cannot be resolved stays as it is.
  const auto canonical = std::filesystem::weakly_canonical(std::filesystem::absolute(path, ignored), ignored);
  return canonical.has_filename() ? canonical : canonical.parent_path();
}

// Returns `path`, at which there is a file or nothing. Renaming a file over a device or a pipe would remove that for
// all programs.
const std::string& replaceable(const std::string& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  TORCH_CHECK_VALUE(!std::filesystem::is_directory(status), path, ": cannot be written: ", reason(EISDIR));
  TORCH_CHECK_VALUE(!std::filesystem::exists(status) || std::filesystem::is_regular_file(status), path,
                    ": cannot be written: it is not a regular file");
  return path;
}

// The first part of the path that is a dangling symbolic link, for a message; empty without one.
std::string describe_dangling_link(const std::string& path) {
  std::filesystem::path part;
  for (const std::filesystem::path& name : std::filesystem::path(path)) {
    part /= name;
    std::error_code ignored;  // A link that cannot be read does not count as dangling.
    const bool leads_nowhere = std::filesystem::status(part, ignored).type() == std::filesystem::file_type::not_found;
    if (leads_nowhere && std::filesystem::is_symlink(part, ignored)) {
      return part.string() + " is a link to " + std::filesystem::read_symlink(part, ignored).string() +
             ", which does not exist";
    }
  }
  return "";
}

}  // namespace

Sha256::Sha256() : context_(make_context()) {
  TORCH_CHECK(context_ != nullptr && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1,
              "libcrypto cannot compute SHA-256");
}

void Sha256::update(std::string_view bytes) {
  TORCH_CHECK(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1, "libcrypto cannot compute SHA-256");
}

std::string Sha256::hex() const {
  const auto copy = make_context();  // Finishing a digest ends its context.
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest = {};
  unsigned int size = 0;
  TORCH_CHECK(copy != nullptr && EVP_MD_CTX_copy_ex(copy.get(), context_.get()) == 1 &&
                  EVP_DigestFinal_ex(copy.get(), digest.data(), &size) == 1,
              "libcrypto cannot compute SHA-256");
  return to_hex(digest.data(), size);
}

void throw_not_written(const std::string& path, const char* failure) {
  const int error = errno;
  constexpr int kOfWrongPaths[] = {EACCES, ENOENT, ENOTDIR, EISDIR, ELOOP, ENAMETOOLONG, EINVAL, ENXIO, EEXIST};
  const bool is_path_wrong = std::ranges::find(kOfWrongPaths, error) != std::end(kOfWrongPaths);
  TORCH_CHECK_VALUE(!is_path_wrong, path, ": ", failure, ": ", reason(error));
  NARROWCAST_CHECK_OUTPUT(false, path, ": ", failure, ": ", reason(error));
}

void write_fully(const FileDescriptor& file, const std::string& path, std::string_view bytes) {
  while (!bytes.empty()) {
    const size_t wanted = std::min(bytes.size(), static_cast<size_t>(kLargestTransfer));
    const ssize_t written = ::write(file.get(), bytes.data(), wanted);
    if (written < 0 && errno == EINTR) {
      continue;
    }
    NARROWCAST_CHECK_OUTPUT(written >= 0, path, ": cannot be written: ", reason(errno));
    bytes.remove_prefix(static_cast<size_t>(written));
  }
}

AtomicFile::AtomicFile(const std::string& path)
    : path_(path),
      temporary_path_(temporary_name(replaceable(path))),
      descriptor_(::open(temporary_path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)) {
  if (!descriptor_.is_open()) throw_not_written(path);
}

AtomicFile::~AtomicFile() {
  if (!temporary_path_.empty()) {
    descriptor_.close();
    ::unlink(temporary_path_.c_str());
  }
}

void AtomicFile::write(std::string_view bytes) {
  write_fully(descriptor_, path_, bytes);
  hash_.update(bytes);
  bytes_ += static_cast<int64_t>(bytes.size());
}

FileDigest AtomicFile::commit() {
  pass(Failpoint::kFileWritten);
  NARROWCAST_CHECK_OUTPUT(::fsync(descriptor_.get()) == 0, path_, ": cannot be written: ", reason(errno));
  pass(Failpoint::kFileSynced);
  commit_unsynced();
  pass(Failpoint::kFileRenamed);
  sync_folder(folder_of(path_));
  return {bytes_, hash_.hex()};
}

void AtomicFile::commit_unsynced() {
  NARROWCAST_CHECK_OUTPUT(descriptor_.close(), path_, ": cannot be written: ", reason(errno));
  if (::rename(temporary_path_.c_str(), path_.c_str()) != 0) throw_not_written(path_);
  temporary_path_.clear();
}

void check_replaceable(const std::string& option, const std::string& path) {
  const std::string folder = folder_of(path);
  std::error_code error;
  TORCH_CHECK_VALUE(std::filesystem::is_directory(folder, error), option, ": ", path, ": folder ", folder,
                    " does not exist");
  try {
    const AtomicFile unused(path);  // Its destructor removes it.
  } catch (const OutputError& failure) {
    NARROWCAST_CHECK_OUTPUT(false, option, ": ", failure.what_without_backtrace());
  } catch (const c10::ValueError& failure) {
    TORCH_CHECK_VALUE(false, option, ": ", failure.what_without_backtrace());
  }
}

std::string try_to_make_folder(const std::string& folder) {
  std::string dangling = describe_dangling_link(folder);
  if (!dangling.empty()) {
    return dangling;
  }
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  return error ? error.message() : "";
}

void make_folder(const std::string& option, const std::string& folder) {
  const std::string reason = try_to_make_folder(folder);
  TORCH_CHECK_VALUE(reason.empty(), option, ": cannot create folder ", folder, ": ", reason);
}

void check_makeable(const std::string& option, const std::string& folder) {
  const std::string dangling = describe_dangling_link(folder);
  TORCH_CHECK_VALUE(dangling.empty(), option, ": cannot create folder ", folder, ": ", dangling);
  std::error_code ignored;  // A folder whose status is unavailable does not exist, or its parent is not writable.
  std::filesystem::path nearest = folder;
  while (!nearest.empty() && !std::filesystem::exists(std::filesystem::symlink_status(nearest, ignored))) {
    nearest = nearest.parent_path();
  }
  if (nearest.empty()) {
    nearest = ".";
  }
  TORCH_CHECK_VALUE(std::filesystem::is_directory(nearest, ignored), option, ": cannot create folder ", folder, ": ",
                    reason(ENOTDIR));
  TORCH_CHECK_VALUE(::access(nearest.c_str(), W_OK | X_OK) == 0, option, ": ", nearest.string(),
                    ": cannot be written: ", reason(errno));
}

bool makes_folder_of(const std::string& folder, const std::string& path) {
  const std::filesystem::path made = whole(folder);
  const std::filesystem::path needed = whole(folder_of(path));
  return std::ranges::mismatch(needed, made).in1 == needed.end();
}

// Not every file system can sync a folder: its files are complete either way.
void sync_folder(const std::string& folder) {
  const FileDescriptor descriptor(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (descriptor.is_open()) {
    ::fsync(descriptor.get());
  }
}

namespace {

// Without O_NONBLOCK, opening a pipe that has no reader would block forever.
FileDescriptor open_for_appending(const std::string& path, JsonLinesMode mode) {
  std::error_code ignored;  // A path whose status is unavailable cannot be opened either.
  TORCH_CHECK_VALUE(!std::filesystem::is_symlink(path, ignored), path,
                    ": cannot be written: it is a symbolic link, but must be a file");
  const int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
  FileDescriptor file(::open(path.c_str(), flags, 0666));
  TORCH_CHECK_VALUE(file.is_open() || errno != ENXIO, path, ": cannot be written: it is not a regular file");
  if (!file.is_open()) throw_not_written(path);
  struct stat status = {};
  TORCH_CHECK_VALUE(::fstat(file.get(), &status) == 0, path, ": cannot be written: ", reason(errno));
  TORCH_CHECK_VALUE(S_ISREG(status.st_mode), path, ": cannot be written: it is not a regular file");
  if (mode != JsonLinesMode::kAppend && ::ftruncate(file.get(), 0) != 0) throw_not_written(path);
  return file;
}

// A copy in which NaN and infinities are strings.
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
    return with_utf8_strings(with_named_specials(object)).dump() + "\n";
  } catch (const nlohmann::json::type_error&) {
    TORCH_CHECK_VALUE(false, path, ": cannot be written: a key of the object is not UTF-8");
  }
}

}  // namespace

JsonLinesFile::JsonLinesFile(const std::string& path, JsonLinesMode mode)
    : path_(path), descriptor_(open_for_appending(path, mode)) {}

void JsonLinesFile::check_place(const std::string& path) {
  std::error_code ignored;  // A path whose status is unavailable cannot be opened either.
  if (std::filesystem::exists(std::filesystem::symlink_status(path, ignored))) {
    open_for_appending(path, JsonLinesMode::kAppend);
  } else {
    const AtomicFile unused(path);  // Its destructor removes it.
  }
}

void JsonLinesFile::append(const nlohmann::json& object) {
  TORCH_CHECK_VALUE(object.is_object(), path_, ": each line must be a JSON object, not ", object.type_name());
  write_fully(descriptor_, path_, to_line(object, path_));
}

}  // namespace narrowcast::files
