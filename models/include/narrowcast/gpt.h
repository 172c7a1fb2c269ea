// GPT-2, at any size.
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

// Shape of a Gpt, by default of the smallest GPT-2. Every field is an option of create_model("gpt", ...).
struct GptOptions {
  int64_t layers = 12;              // transformer blocks, 1..256
  int64_t heads = 12;               // attention heads per block, 1..256; must divide width
  int64_t width = 768;              // size of the hidden state, 1..16384
  int64_t context = 1024;           // most tokens the model sees at once, 1..65536
  int64_t vocabulary_size = 50257;  // different tokens, 1..1114112
};

// Decoder-only transformer as in GPT-2 (Radford et al. 2019). It has token and position embeddings, pre-norm blocks of
// causal attention and a GELU MLP of four times the width, and a last layer norm. The output projection shares the
// token embedding's weight (one parameter). Weights start as N(0, 0.02^2), the projections that write to the residual
// stream as N(0, (0.02 / sqrt(2 layers))^2), biases at 0, layer norms at the identity. Dropout applies to the
// embeddings, the attention's weights and the results that attention and MLP add to the residual stream.
class NARROWCAST_EXPORT Gpt : public Model {
 public:
  // The name by which create_model makes it.
  static constexpr const char* kName = "gpt";

  // Throws c10::ValueError if an option is out of its range, or if heads does not divide width.
  explicit Gpt(const GptOptions& options = {});
  ~Gpt() override;

  // Makes the model with the given options, e.g. {{"layers", 2}}; see create_model. If `heads` is not given, heads are
  // 64 wide, as in every GPT-2.
  static std::shared_ptr<Gpt> create(const ModelOptions& options);
  // See models::count_parameters.
  static int64_t count_parameters(const ModelOptions& options);
  // The names of its options.
  static std::vector<std::string> option_names();

  // tokens int64 [B, T], each in 0..vocabulary_size-1, 1 <= T <= context -> float32 [B, T, vocabulary_size].
  // Position t sees tokens 0..t only.
  at::Tensor logits(const at::Tensor& tokens);

  // inputs and targets int64 [B, T] -> mean cross entropy in nats of the targets given logits(inputs).
  at::Tensor forward(const Batch& batch) override;

  std::optional<NextToken> next_token() override;

  // Continues a prompt like models::generate (generation.h), with this model's logits.
  at::Tensor generate(const at::Tensor& prompt, const GenerateOptions& options, const at::Generator& generator);

  bool announces_layers() const override { return true; }

  // The token embedding, which is the output projection as well, and the position embedding.
  std::vector<at::Tensor> embeddings_and_heads() const override;

  ModelOptions options() const override;

  // The shape this model was made with.
  const GptOptions& shape() const { return shape_; }

 protected:
  // Error messages begin with `name`, the model's.
  Gpt(const char* name, const GptOptions& options);

 private:
  class Block;

  bool has_dropout() const override { return true; }
  bool has_label_smoothing() const override { return true; }
  at::Tensor hidden_states(const at::Tensor& tokens);
  void initialize_parameters();

  GptOptions shape_;
  torch::nn::Embedding token_embedding_{nullptr};
  torch::nn::Embedding position_embedding_{nullptr};
  std::vector<std::shared_ptr<Block>> blocks_;
  torch::nn::LayerNorm final_norm_{nullptr};
};

}  // namespace narrowcast::models
