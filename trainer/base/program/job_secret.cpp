#include "trainer/base/program/job_secret.h"

#include <absl/strings/escaping.h>
#include <c10/util/Exception.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "ops/common/file_descriptor.h"
#include "trainer/base/files/open_file.h"

namespace narrowcast::program {
namespace {

constexpr size_t kNonceBytes = 32;

}  // namespace

JobSecret JobSecret::read(const std::string& option, const std::string& path) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  TORCH_CHECK_VALUE(file.is_open(), option, ": ", path, ": cannot be read: ", files::reason(errno));
  struct stat status {};
  TORCH_CHECK_VALUE(::fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode), option, ": ", path,
                    ": is not a regular file");
  TORCH_CHECK_VALUE(status.st_uid == ::geteuid() || status.st_uid == 0, option, ": ", path,
                    ": must belong to this user or root, but belongs to user ", status.st_uid);
  TORCH_CHECK_VALUE((status.st_mode & (S_IRWXG | S_IRWXO)) == 0, option, ": ", path,
                    ": other users may read or write it; run chmod 600");
  std::string bytes(kMostBytes + 2, '\0');
  const ssize_t read = ::read(file.get(), bytes.data(), bytes.size());
  TORCH_CHECK_VALUE(read >= 0, option, ": ", path, ": cannot be read: ", files::reason(errno));
  bytes.resize(static_cast<size_t>(read));
  while (!bytes.empty() && (bytes.back() == '\n' || bytes.back() == '\r')) {
    bytes.pop_back();
  }
  TORCH_CHECK_VALUE(bytes.size() >= kLeastBytes && bytes.size() <= kMostBytes, option, ": ", path, ": has ",
                    bytes.size(), " bytes, but a secret must have ", kLeastBytes, " to ", kMostBytes);
  return JobSecret(std::move(bytes));
}

std::optional<JobSecret> JobSecret::of_environment(const EnvironmentVariables& environment) {
  const auto found = environment.find(kSecretVariable);
  if (found == environment.end() || found->second.empty()) {
    return std::nullopt;
  }
  return read(kSecretVariable, found->second);
}

std::string JobSecret::mac(std::string_view text) const {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  const auto* const bytes = reinterpret_cast<const unsigned char*>(text.data());
  TORCH_CHECK(HMAC(EVP_sha256(), bytes_.data(), static_cast<int>(bytes_.size()), bytes, text.size(), digest.data(),
                   &size) != nullptr,
              "libcrypto cannot compute an HMAC");
  return absl::BytesToHexString({reinterpret_cast<const char*>(digest.data()), size});
}

bool equal_in_constant_time(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string random_nonce() {
  std::array<unsigned char, kNonceBytes> bytes{};
  TORCH_CHECK(RAND_bytes(bytes.data(), static_cast<int>(bytes.size())) == 1, "libcrypto has no random numbers");
  return absl::BytesToHexString({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

}  // namespace narrowcast::program
