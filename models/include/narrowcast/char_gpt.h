// A small GPT over characters.
#pragma once

#include <ATen/core/Generator.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/normalization.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <narrowcast/generation.h>
#include <narrowcast/model.h>

namespace narrowcast::models {

// Shape of a CharGpt. Every one is an option of create_model("char_gpt", ...).
struct CharGptOptions {
  int64_t layers = 2;             // transformer blocks, 1..256
  int64_t heads = 4;              // attention heads per block, 1..256; must divide width
  int64_t width = 96;             // size of the hidden state, 1..16384
  int64_t context = 64;           // most tokens the model sees at once, 1..65536
  int64_t vocabulary_size = 256;  // different tokens, 1..1114112
};

// Decoder-only transformer as in GPT-2 (Radford et al. 2019): token and position embeddings, pre-norm blocks of
// causal attention and a GELU MLP of four times the width, a last layer norm, and an output projection that
// shares the token embedding's weight (one parameter). Weights start as N(0, 0.02^2), the projections that
// write to the residual stream as N(0, (0.02 / sqrt(2 layers))^2), biases at 0, layer norms at the identity.
class NARROWCAST_EXPORT CharGpt : public Model {
 public:
  // The name by which create_model makes it.
  static constexpr const char* kName = "char_gpt";

  // Throws c10::ValueError for an option out of its range or a width that heads does not divide.
  explicit CharGpt(const CharGptOptions& options = {});
  ~CharGpt() override;

  // Makes the model that {{"layers", 2}, ...} describes; see create_model.
  static std::shared_ptr<CharGpt> create(const ModelOptions& options);
  // See models::count_parameters.
  static int64_t count_parameters(const ModelOptions& options);
  // The names of its options.
  static std::vector<std::string> option_names();

  // tokens int64 [B, T], each in 0..vocabulary_size-1, 1 <= T <= context -> float32 [B, T, vocabulary_size].
  // Position t sees tokens 0..t only.
  at::Tensor logits(const at::Tensor& tokens);

  // inputs and targets int64 [B, T]: mean cross entropy in nats of targets given logits(inputs).
  at::Tensor forward(const Batch& batch) override;

  // Continues a prompt as models::generate (generation.h) does, from this model's logits.
  at::Tensor generate(const at::Tensor& prompt, const GenerateOptions& options, const at::Generator& generator);

  ModelOptions options() const override;

  // The shape this model was made with.
  const CharGptOptions& shape() const { return shape_; }

 private:
  class Block;

  at::Tensor hidden_states(const at::Tensor& tokens);
  void initialize_parameters();

  CharGptOptions shape_;
  torch::nn::Embedding token_embedding_{nullptr};
  torch::nn::Embedding position_embedding_{nullptr};
  std::vector<std::shared_ptr<Block>> blocks_;
  torch::nn::LayerNorm final_norm_{nullptr};
};

}  // namespace narrowcast::models
