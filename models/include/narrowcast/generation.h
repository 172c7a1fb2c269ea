// Text from a language model, token by token.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include <narrowcast/export.h>

namespace narrowcast::models {

// Says how the next token is picked, and how many are.
struct GenerateOptions {
  int64_t count = 256;       // tokens to generate, >= 0
  double temperature = 1.0;  // divides the logits, >= 0; 0 always takes the likeliest token
  int64_t top_k = 0;         // sample among the k likeliest tokens only; 0: among all
  int64_t vocabulary = 0;    // as if there were only the first so many tokens, as in a padded vocabulary; 0: all
};

// What generate needs to know of a model.
struct NextToken {
  int64_t context;                                      // most tokens that the model sees, >= 1
  std::function<at::Tensor(const at::Tensor&)> logits;  // tokens int64 [T], 1 <= T <= context -> float [vocabulary]
};

// Continues `prompt` (int64 [T], T >= 1; only its last `context` tokens are seen) by options.count tokens:
// int64 [count], drawn from `generator` (a CPU one), without the prompt. No gradient is recorded. Throws
// c10::ValueError or c10::TypeError naming a value that is none of these.
NARROWCAST_EXPORT at::Tensor generate(const NextToken& next, const at::Tensor& prompt, const GenerateOptions& options,
                                      const at::Generator& generator);

}  // namespace narrowcast::models
