#include <narrowcast/generation.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

namespace narrowcast::models {
namespace {

// Sets all logits [V] except the k largest to -inf; ties with the k-th are kept.
at::Tensor keep_top_k(const at::Tensor& logits, int64_t k) {
  if (k == 0 || k >= logits.numel()) {
    return logits;
  }
  const at::Tensor smallest_kept = std::get<0>(logits.topk(k)).min();
  return logits.masked_fill(logits < smallest_kept, -INFINITY);
}

// Picks one token, int64 [1], from logits [V].
at::Tensor pick_token(const at::Tensor& logits, const GenerateOptions& options, const at::Generator& generator) {
  if (options.temperature == 0) {
    return logits.argmax(0, /*keepdim=*/true);
  }
  const at::Tensor probabilities = keep_top_k(logits / options.temperature, options.top_k).softmax(0);
  return probabilities.multinomial(1, /*replacement=*/false, generator);
}

void check_options(const GenerateOptions& options) {
  TORCH_CHECK_VALUE(options.count >= 0, "generate: count must be at least 0, but is ", options.count);
  TORCH_CHECK_VALUE(std::isfinite(options.temperature) && options.temperature >= 0,
                    "generate: temperature must be a number of at least 0, but is ", options.temperature);
  TORCH_CHECK_VALUE(options.vocabulary >= 0, "generate: vocabulary must be at least 0, but is ", options.vocabulary);
  TORCH_CHECK_VALUE(options.top_k >= 0, "generate: top_k must be at least 0, but is ", options.top_k);
}

void check_prompt(const at::Tensor& prompt) {
  TORCH_CHECK_TYPE(prompt.scalar_type() == at::kLong, "generate: prompt must be int64, but is ", prompt.scalar_type());
  TORCH_CHECK_VALUE(prompt.dim() == 1 && prompt.numel() > 0,
                    "generate: prompt must be a non-empty tensor of 1 dimension, but has the shape ", prompt.sizes());
}

}  // namespace

at::Tensor generate(const NextToken& next, const at::Tensor& prompt, const GenerateOptions& options,
                    const at::Generator& generator) {
  check_prompt(prompt);
  check_options(options);
  const at::NoGradGuard no_grad;
  const at::Tensor tokens = at::cat({prompt, at::zeros({options.count}, prompt.options())});
  for (int64_t end = prompt.numel(); end < tokens.numel(); ++end) {
    const at::Tensor seen = tokens.slice(0, std::max<int64_t>(0, end - next.context), end);
    const at::Tensor logits = next.logits(seen);
    const int64_t known = options.vocabulary > 0 ? options.vocabulary : logits.size(0);
    tokens.slice(0, end, end + 1).copy_(pick_token(logits.slice(0, 0, known), options, generator));
  }
  return tokens.slice(0, prompt.numel()).clone();
}

}  // namespace narrowcast::models
