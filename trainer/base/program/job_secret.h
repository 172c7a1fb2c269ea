// A secret that the launchers and ranks of a job share, and nobody else: what proves that bytes in the store, or at the
// other end of a connection, are from one of them.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <narrowcast/worker_env.h>

namespace narrowcast::program {

// The environment variable that names its file.
inline constexpr const char* kSecretVariable = "NARROWCAST_SECRET_FILE";

class JobSecret {
 public:
  // Bytes of the shortest and the longest.
  static constexpr size_t kLeastBytes = 16;
  static constexpr size_t kMostBytes = 4096;

  // What is in the file, without line feeds at its end. Throws c10::ValueError "OPTION: PATH: ..." unless it is a
  // regular file of this user or root, which no other user may read or write, with as many bytes as a secret has.
  static JobSecret read(const std::string& option, const std::string& path);

  // That of the file which kSecretVariable names; none without it.
  static std::optional<JobSecret> of_environment(const EnvironmentVariables& environment);

  // The HMAC-SHA-256 (RFC 2104) of a text: 64 lower-case hexadecimal digits.
  std::string mac(std::string_view text) const;

 private:
  explicit JobSecret(std::string bytes) : bytes_(std::move(bytes)) {}

  std::string bytes_;
};

// Whether two texts are the same, in a time that does not tell where they differ.
bool equal_in_constant_time(std::string_view a, std::string_view b);

// 64 hexadecimal digits that nobody can foretell.
std::string random_nonce();

}  // namespace narrowcast::program
