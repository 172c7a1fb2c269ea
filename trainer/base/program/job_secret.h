// A secret that only the launchers and ranks of a job share. It proves that bytes in the store, or at the other end of
// a connection, come from one of them.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <narrowcast/worker_env.h>

namespace narrowcast::program {

// The environment variable with the path of the secret's file.
inline constexpr const char* kSecretVariable = "NARROWCAST_SECRET_FILE";

class JobSecret {
 public:
  // Bytes of the shortest and the longest secret.
  static constexpr size_t kLeastBytes = 16;
  static constexpr size_t kMostBytes = 4096;

  // Reads a file without line feeds and carriage returns at its end. Throws c10::ValueError "OPTION: PATH: ..." unless
  // it is a regular file of this user or root, no other user may read or write it, and its length is allowed.
  static JobSecret read(const std::string& option, const std::string& path);

  // The secret in the file that kSecretVariable names; empty if the variable is not set.
  static std::optional<JobSecret> of_environment(const EnvironmentVariables& environment);

  // The HMAC-SHA-256 (RFC 2104) of a text: 64 lower-case hexadecimal digits.
  std::string mac(std::string_view text) const;

 private:
  explicit JobSecret(std::string bytes) : bytes_(std::move(bytes)) {}

  std::string bytes_;
};

// Whether two texts are equal. The time does not depend on where they differ.
bool equal_in_constant_time(std::string_view a, std::string_view b);

// 64 unpredictable hexadecimal digits.
std::string random_nonce();

}  // namespace narrowcast::program
