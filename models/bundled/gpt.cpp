#include <narrowcast/gpt.h>

#include <ATen/ATen.h>
#include <torch/nn/modules/container/modulelist.h>

#include <array>
#include <cmath>

#include <narrowcast/char_gpt.h>
#include <narrowcast/linear.h>
#include "models/bundled/options.h"

namespace narrowcast::models {
namespace {

constexpr double kInitialStd = 0.02;
constexpr int64_t kMlpRatio = 4;
constexpr int64_t kHeadWidth = GptOptions().width / GptOptions().heads;  // In every GPT-2.

// The options of Gpt and of CharGpt, whose defaults differ.
template <class Options>
std::span<const IntegerOption<Options>> gpt_options() {
  static constexpr std::array<IntegerOption<Options>, 5> table = {{
      {"layers", &Options::layers, 1, 256},
      {"heads", &Options::heads, 1, 256},
      {"width", &Options::width, 1, 16384},
      {"context", &Options::context, 1, 65536},
      {"vocabulary_size", &Options::vocabulary_size, 1, 1114112},
  }};
  return table;
}

GptOptions gpt_shape(const CharGptOptions& options) {
  return {.layers = options.layers,
          .heads = options.heads,
          .width = options.width,
          .context = options.context,
          .vocabulary_size = options.vocabulary_size};
}

GptOptions read_gpt(const ModelOptions& options) {
  GptOptions shape = read_options(Gpt::kName, gpt_options<GptOptions>(), options);
  if (!options.contains("heads")) {
    TORCH_CHECK_VALUE(shape.width % kHeadWidth == 0, Gpt::kName,
                      ": option heads must be given if width is not a multiple of ", kHeadWidth, ", but width is ",
                      shape.width);
    shape.heads = shape.width / kHeadWidth;
  }
  return shape;
}

GptOptions checked(const char* name, const GptOptions& shape) {
  check_options(name, gpt_options<GptOptions>(), shape);
  TORCH_CHECK_VALUE(shape.width % shape.heads == 0, name, ": option heads must divide width, but heads is ",
                    shape.heads, " and width is ", shape.width);
  return shape;
}

int64_t parameters_of(const GptOptions& shape) {
  const int64_t width = shape.width;
  const int64_t norm = 2 * width;
  const int64_t attention = linear_parameters(width, 3 * width) + linear_parameters(width, width);
  const int64_t mlp = linear_parameters(width, kMlpRatio * width) + linear_parameters(kMlpRatio * width, width);
  return (shape.vocabulary_size + shape.context) * width + shape.layers * (attention + mlp + 2 * norm) + norm;
}

// A model's tensor and its name in messages.
struct NamedTokens {
  const std::string& model;
  const char* what;
  const at::Tensor& tokens;
};

void check_tokens(const NamedTokens& named) {
  const auto& [model, what, tokens] = named;
  TORCH_CHECK_TYPE(tokens.scalar_type() == at::kLong, model, ": ", what, " must be int64, but is ",
                   tokens.scalar_type());
  TORCH_CHECK_VALUE(tokens.dim() == 2 && tokens.numel() > 0, model, ": ", what, " must be a non-empty tensor of 2 ",
                    "dimension(s), but has the shape ", tokens.sizes());
}

// Draws no random numbers if `share` is 0.
at::Tensor dropped(const at::Tensor& x, double share) { return share > 0 ? at::dropout(x, share, /*train=*/true) : x; }

}  // namespace

// x = x + attention(norm(x)); x = x + mlp(norm(x)).
class Gpt::Block : public torch::nn::Module {
 public:
  explicit Block(const GptOptions& shape) : heads_(shape.heads) {
    const int64_t width = shape.width;
    attention_norm_ = register_module("attention_norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    query_key_value_ = register_module("query_key_value", Linear(width, 3 * width));
    attention_output_ = register_module("attention_output", Linear(width, width));
    mlp_norm_ = register_module("mlp_norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    mlp_input_ = register_module("mlp_input", Linear(width, kMlpRatio * width));
    mlp_output_ = register_module("mlp_output", Linear(kMlpRatio * width, width));
  }

  // `dropout` is the share that is left out.
  at::Tensor forward(const at::Tensor& x, double dropout) {
    const at::Tensor attended = x + dropped(attention(attention_norm_(x), dropout), dropout);
    return attended + dropped(mlp_output_(at::gelu(mlp_input_(mlp_norm_(attended)), "tanh")), dropout);
  }

  // The layers whose results are added to the residual stream.
  std::array<Linear, 2> residual_projections() { return {attention_output_, mlp_output_}; }

 private:
  // [B, T, width] -> [B, T, width]
  at::Tensor attention(const at::Tensor& x, double dropout) {
    const int64_t batch = x.size(0);
    const int64_t length = x.size(1);
    const int64_t width = x.size(2);
    const std::vector<at::Tensor> parts =  // query, key, value, each [B, heads, T, width / heads]
        query_key_value_(x).view({batch, length, 3, heads_, width / heads_}).permute({2, 0, 3, 1, 4}).unbind(0);
    const at::Tensor mixed =
        at::scaled_dot_product_attention(parts[0], parts[1], parts[2], /*attn_mask=*/{}, dropout, /*is_causal=*/true);
    return attention_output_(mixed.transpose(1, 2).reshape({batch, length, width}));
  }

  int64_t heads_;
  torch::nn::LayerNorm attention_norm_{nullptr};
  Linear query_key_value_{nullptr};
  Linear attention_output_{nullptr};
  torch::nn::LayerNorm mlp_norm_{nullptr};
  Linear mlp_input_{nullptr};
  Linear mlp_output_{nullptr};
};

Gpt::Gpt(const GptOptions& options) : Gpt(kName, options) {}

Gpt::Gpt(const char* name, const GptOptions& options) : Model(name), shape_(checked(name, options)) {
  token_embedding_ = register_module("token_embedding", torch::nn::Embedding(shape_.vocabulary_size, shape_.width));
  position_embedding_ = register_module("position_embedding", torch::nn::Embedding(shape_.context, shape_.width));
  torch::nn::ModuleList blocks = register_module("blocks", torch::nn::ModuleList());
  for (int64_t layer = 0; layer < shape_.layers; ++layer) {
    blocks_.push_back(std::make_shared<Block>(shape_));
    blocks->push_back(blocks_.back());
  }
  final_norm_ = register_module("final_norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({shape_.width})));
  initialize_parameters();
}

Gpt::~Gpt() = default;

std::shared_ptr<Gpt> Gpt::create(const ModelOptions& options) { return std::make_shared<Gpt>(read_gpt(options)); }

int64_t Gpt::count_parameters(const ModelOptions& options) { return parameters_of(checked(kName, read_gpt(options))); }

std::vector<std::string> Gpt::option_names() { return models::option_names(gpt_options<GptOptions>()); }

void Gpt::initialize_parameters() {
  const at::NoGradGuard no_grad;
  for (const auto& module : modules(/*include_self=*/false)) {
    if (auto* embedding = module->as<torch::nn::Embedding>()) {
      embedding->weight.normal_(0.0, kInitialStd);
    } else if (auto* linear = module->as<Linear>()) {
      linear->weight.normal_(0.0, kInitialStd);
      linear->bias.zero_();
    }
  }
  // The residual stream is a sum of 2 * layers terms: this makes its initial variance independent of the number of
  // layers.
  const double residual_std = kInitialStd / std::sqrt(2.0 * static_cast<double>(shape_.layers));
  for (const auto& block : blocks_) {
    for (const auto& projection : block->residual_projections()) {
      projection->weight.normal_(0.0, residual_std);
    }
  }
}

at::Tensor Gpt::hidden_states(const at::Tensor& tokens) {
  check_tokens({name(), "tokens", tokens});
  const int64_t length = tokens.size(1);
  TORCH_CHECK_VALUE(length <= shape_.context, name(), ": tokens must be at most context = ", shape_.context,
                    " long, but are ", length);
  announce(*token_embedding_);
  announce(*position_embedding_);
  at::Tensor x = dropped(token_embedding_(tokens) + position_embedding_->weight.slice(0, 0, length), dropout());
  for (const auto& block : blocks_) {
    announce(*block);
    x = block->forward(x, dropout());
  }
  announce(*final_norm_);
  return final_norm_(x);
}

std::vector<at::Tensor> Gpt::embeddings_and_heads() const {
  return {token_embedding_->weight, position_embedding_->weight};
}

at::Tensor Gpt::logits(const at::Tensor& tokens) { return at::linear(hidden_states(tokens), token_embedding_->weight); }

at::Tensor Gpt::forward(const Batch& batch) {
  check_tokens({name(), "targets", batch.targets});
  TORCH_CHECK_VALUE(batch.inputs.sizes() == batch.targets.sizes(), name(), ": inputs and targets must have one shape, ",
                    "but have ", batch.inputs.sizes(), " and ", batch.targets.sizes());
  return at::cross_entropy_loss(logits(batch.inputs).flatten(0, 1), batch.targets.flatten(), /*weight=*/{},
                                at::Reduction::Mean, /*ignore_index=*/-100, label_smoothing());
}

std::optional<NextToken> Gpt::next_token() {
  const auto last_logits = [this](const at::Tensor& tokens) {
    return token_embedding_->weight.mv(hidden_states(tokens.unsqueeze(0))[0][-1]);
  };
  return NextToken{.context = shape_.context, .logits = last_logits};
}

at::Tensor Gpt::generate(const at::Tensor& prompt, const GenerateOptions& options, const at::Generator& generator) {
  return models::generate(next_token().value(), prompt, options, generator);
}

ModelOptions Gpt::options() const { return write_options(gpt_options<GptOptions>(), shape_); }

CharGpt::CharGpt(const CharGptOptions& options) : Gpt(kName, gpt_shape(options)) {}

std::shared_ptr<CharGpt> CharGpt::create(const ModelOptions& options) {
  return std::make_shared<CharGpt>(read_options(kName, gpt_options<CharGptOptions>(), options));
}

int64_t CharGpt::count_parameters(const ModelOptions& options) {
  return parameters_of(checked(kName, gpt_shape(read_options(kName, gpt_options<CharGptOptions>(), options))));
}

}  // namespace narrowcast::models
