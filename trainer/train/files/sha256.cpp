#include "trainer/train/files/sha256.h"

#include <c10/util/Exception.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>

#include "trainer/base/files/open_file.h"

namespace narrowcast::files {
namespace {

constexpr int64_t kHashedAtOnce = int64_t{1} << 20;

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

}  // namespace

Sha256::Sha256() : context_(make_context()) {
  TORCH_CHECK(context_ != nullptr && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1,
              "libcrypto cannot compute SHA-256");
}

void Sha256::update(std::string_view bytes) {
  TORCH_CHECK(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1, "libcrypto cannot compute SHA-256");
}

std::string Sha256::hex() const {
  const auto copy = make_context();  // Ending a digest would end this one.
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest = {};
  unsigned int size = 0;
  TORCH_CHECK(copy != nullptr && EVP_MD_CTX_copy_ex(copy.get(), context_.get()) == 1 &&
                  EVP_DigestFinal_ex(copy.get(), digest.data(), &size) == 1,
              "libcrypto cannot compute SHA-256");
  return to_hex(digest.data(), size);
}

FileDigest digest_of_file(const std::string& path) {
  const InputFile file(path);
  Sha256 hash;
  std::string chunk(static_cast<size_t>(std::min(kHashedAtOnce, file.size())), '\0');
  for (int64_t done = 0; done < file.size();) {
    const int64_t bytes = std::min(kHashedAtOnce, file.size() - done);
    file.read(done, chunk.data(), bytes);
    hash.update(std::string_view(chunk).substr(0, static_cast<size_t>(bytes)));
    done += bytes;
  }
  return {file.size(), hash.hex()};
}

}  // namespace narrowcast::files
