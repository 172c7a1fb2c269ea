// A small GPT over characters.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <narrowcast/gpt.h>

namespace narrowcast::models {

// Shape of a CharGpt. Every field is an option of create_model("char_gpt", ...).
struct CharGptOptions {
  int64_t layers = 2;             // transformer blocks, 1..256
  int64_t heads = 4;              // attention heads per block, 1..256; must divide width
  int64_t width = 96;             // size of the hidden state, 1..16384
  int64_t context = 64;           // most tokens the model sees at once, 1..65536
  int64_t vocabulary_size = 256;  // different tokens, 1..1114112
};

// A Gpt that is small by default, over exactly the characters of its text.
class NARROWCAST_EXPORT CharGpt : public Gpt {
 public:
  // The name by which create_model makes it.
  static constexpr const char* kName = "char_gpt";

  // Throws c10::ValueError if an option is out of its range, or if heads does not divide width.
  explicit CharGpt(const CharGptOptions& options = {});

  // Makes the model with the given options, e.g. {{"layers", 2}}; see create_model.
  static std::shared_ptr<CharGpt> create(const ModelOptions& options);
  // See models::count_parameters.
  static int64_t count_parameters(const ModelOptions& options);
};

}  // namespace narrowcast::models
