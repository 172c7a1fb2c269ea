// Text from a language model, token by token.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include <narrowcast/export.h>

namespace narrowcast::models {

// The number of tokens, and how each is chosen.
struct GenerateOptions {
  int64_t count = 256;       // tokens to generate, >= 0
  double temperature = 1.0;  // divides the logits, >= 0; 0 always takes the likeliest token
  int64_t top_k = 0;         // sample among the k likeliest tokens only; 0: among all
  int64_t vocabulary = 0;    // choose among the first `vocabulary` tokens, e.g. of a padded vocabulary; 0: all
};

// The properties of a model that generate needs.
struct NextToken {
  int64_t context;                                      // most tokens that the model sees, >= 1
  std::function<at::Tensor(const at::Tensor&)> logits;  // tokens int64 [T], 1 <= T <= context -> float [vocabulary]
};

// Continues `prompt` by options.count tokens and returns them, without the prompt: int64 [count]. The prompt is int64
// [T], T >= 1; the model sees only its last `context` tokens. Tokens are drawn from `generator`, a CPU generator. No
// gradient is recorded. Throws a c10::ValueError or c10::TypeError that names an invalid value.
NARROWCAST_EXPORT at::Tensor generate(const NextToken& next, const at::Tensor& prompt, const GenerateOptions& options,
                                      const at::Generator& generator);

}  // namespace narrowcast::models
