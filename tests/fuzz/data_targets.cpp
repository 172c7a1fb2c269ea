// Data that models are trained on.
#include <c10/util/Exception.h>

#include <algorithm>
#include <string>
#include <vector>

#include "ops/common/text.h"
#include "tests/fuzz/target.h"
#include "trainer/train/data/idx_images.h"
#include "trainer/train/data/text_corpus.h"
#include "trainer/train/data/token_files.h"
#include "trainer/train/files/npy.h"

namespace narrowcast::fuzz {
namespace {

std::string bytes_of(std::initializer_list<int> values) { return {values.begin(), values.end()}; }

Target idx_images() {
  return {"idx_images", as_file("images-idx3-ubyte", [](const std::string& path) { data::read_idx_images(path); }), [] {
            return std::vector<std::string>{
                bytes_of({0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 2, 1, 2, 3, 4, 5, 6, 7, 8})};
          }};
}

Target idx_labels() {
  return {"idx_labels", as_file("labels-idx1-ubyte", [](const std::string& path) { data::read_idx_labels(path, 10); }),
          [] {
            return std::vector<std::string>{bytes_of({0, 0, 8, 1, 0, 0, 0, 3, 9, 0, 4})};
          }};
}

std::string npy_file(const std::string& version, const std::string& dtype, const std::string& shape, size_t bytes) {
  std::string header = "{'descr': '" + dtype + "', 'fortran_order': False, 'shape': " + shape + ", }";
  header.resize(118 - 1, ' ');
  header += '\n';
  const std::string length = version[0] == '\1' ? bytes_of({118, 0}) : bytes_of({118, 0, 0, 0});
  return "\x93NUMPY" + version + length + header + std::string(bytes, '\1');
}

Target npy() {
  return {"npy", as_file("array.npy", [](const std::string& path) { files::map_npy(path); }), [] {
            return std::vector<std::string>{npy_file({1, 0}, "<f4", "(2, 3)", 24), npy_file({2, 0}, "|u1", "(5,)", 5),
                                            npy_file({3, 0}, "<i8", "()", 8)};
          }};
}

// A token file of llm.c: 256 int32 before the tokens.
std::string token_file(uint32_t magic, uint32_t version, size_t token_bytes) {
  std::string file;
  const auto append = [&](uint32_t value) {
    for (int byte = 0; byte < 4; ++byte) file += static_cast<char>(value >> (8 * byte));
  };
  append(magic);
  append(version);
  append(3);
  file.resize(1024, '\0');
  return file + std::string(3 * token_bytes, '\1');
}

void read_tokens(const std::string& path) {
  const data::TokenFile file(path);
  std::vector<int64_t> tokens(static_cast<size_t>(std::min<int64_t>(file.size(), 64)));
  file.greatest();
  file.copy(0, std::ssize(tokens), 50257, tokens.data());
}

Target llm_c_tokens() {
  return {"tokens", as_file("shard.bin", read_tokens), [] {
            return std::vector<std::string>{token_file(20240520, 1, 2), token_file(20240801, 7, 4)};
          }};
}

Target raw_tokens() {
  return {"raw_tokens", as_file("train.bin", read_tokens), [] {
            return std::vector<std::string>{bytes_of({1, 2, 3, 4, 5, 6}), token_file(20240520, 1, 2)};
          }};
}

// Text that decodes to code points encodes to the same bytes, and printable text is unchanged by printable().
Target utf8() {
  const auto read = [](std::string_view input) {
    const DecodedUtf8 decoded = decode_utf8(input);
    const std::string_view good = input.substr(0, decoded.first_bad_byte.value_or(input.size()));
    TORCH_INTERNAL_ASSERT(encode_utf8(decoded.code_points) == good, "the code points are others");
    const std::string shown = printable(input);
    TORCH_INTERNAL_ASSERT(shown.size() <= kLongestMessage && printable(shown) == shown, "not printable: ", shown);
    TORCH_INTERNAL_ASSERT(!decode_utf8(shown).first_bad_byte.has_value(), "no UTF-8: ", shown);
    in_quotes(input);
    for (const size_t most : {0, 1, 2, 3, 100}) {
      first_characters(input, most);
      last_characters(input, most);
    }
  };
  return {"utf8", read, [] { return std::vector<std::string>{"a\u00e4\u20ac\U0001f600\u202e\x01\\n'"}; }};
}

Target vocabulary() {
  const auto read = [](std::string_view input) {
    const DecodedUtf8 decoded = decode_utf8(input);
    if (decoded.code_points.empty()) return;
    const data::Vocabulary vocabulary = data::Vocabulary::of_text(decoded.code_points);
    const std::string text = encode_utf8(decoded.code_points);
    TORCH_INTERNAL_ASSERT(vocabulary.decode(vocabulary.encode(text)) == text, "the text is another");
    vocabulary.encode(input);
  };
  return {"vocabulary", read, [] { return std::vector<std::string>{"to be or not to be \u00e4"}; }};
}

}  // namespace

std::vector<Target> data_targets() {
  return {idx_images(), idx_labels(), npy(), llm_c_tokens(), raw_tokens(), utf8(), vocabulary()};
}

}  // namespace narrowcast::fuzz
