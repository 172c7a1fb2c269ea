#include "trainer/train/files/gpt2_layout.h"

#include <ATen/ATen.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include <narrowcast/errors.h>
#include "ops/common/text.h"

namespace narrowcast::files {
namespace {

constexpr std::string_view kPrefix = "transformer.";
constexpr const char* kHead = "lm_head.weight";

// Parts of names between dots; numbers, "weight" and "bias" stay as they are.
constexpr std::pair<std::string_view, std::string_view> kNames[] = {
    {"token_embedding", "wte"}, {"position_embedding", "wpe"},      {"blocks", "h"},
    {"attention_norm", "ln_1"}, {"query_key_value", "attn.c_attn"}, {"attention_output", "attn.c_proj"},
    {"mlp_norm", "ln_2"},       {"mlp_input", "mlp.c_fc"},          {"mlp_output", "mlp.c_proj"},
    {"final_norm", "ln_f"}};

const std::string kTokenEmbedding = gpt2_name("token_embedding.weight");
const std::string kPositionEmbedding = gpt2_name("position_embedding.weight");
const std::string kBlocks = gpt2_name("blocks.");

bool is_mask(std::string_view name) {
  return name.starts_with(kBlocks) && (name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias"));
}

bool are_equal(const at::Tensor& left, const at::Tensor& right) {
  return left.scalar_type() == right.scalar_type() && left.equal(right);
}

const at::Tensor& matrix(const std::string& path, const models::StateDict& tensors, const std::string& name) {
  const auto found = tensors.find(name);
  NARROWCAST_CHECK_INPUT(found != tensors.end(), path, ": the model's tensor '", name, "' is missing");
  NARROWCAST_CHECK_INPUT(found->second.dim() == 2, path, ": tensor '", name, "' has the shape ", found->second.sizes(),
                         ", but must have 2 dimensions");
  return found->second;
}

// The number of blocks in the names. If a block between them is missing, so is a tensor of the last one.
int64_t count_blocks(const models::StateDict& tensors) {
  std::set<std::string_view> numbers;
  for (const auto& [name, tensor] : tensors) {
    if (name.starts_with(kBlocks)) {
      const std::string_view rest = std::string_view(name).substr(kBlocks.size());
      numbers.insert(rest.substr(0, rest.find('.')));
    }
  }
  return std::ssize(numbers);
}

}  // namespace

std::string gpt2_name(const std::string& name) {
  std::vector<std::string> parts = absl::StrSplit(name, '.');
  for (std::string& part : parts) {
    const auto* const known = std::ranges::find(kNames, part, [](const auto& entry) { return entry.first; });
    if (known != std::end(kNames)) part = known->second;
  }
  return absl::StrJoin(parts, ".");
}

models::StateDict in_gpt2_layout(const models::StateDict& state) {
  models::StateDict tensors;
  for (const auto& [name, tensor] : state) {
    std::string there = gpt2_name(name);
    const bool is_conv1d = there.starts_with(kBlocks) && tensor.dim() == 2;
    tensors.emplace(std::move(there), is_conv1d ? tensor.detach().t() : tensor.detach());
  }
  return tensors;
}

bool has_gpt2_layout(const models::StateDict& tensors) {
  return tensors.contains(kTokenEmbedding) || tensors.contains(std::string(kPrefix) + kTokenEmbedding);
}

models::StateDict without_gpt2_extras(const std::string& path, const models::StateDict& tensors) {
  models::StateDict plain;
  for (const auto& [name, tensor] : tensors) {
    std::string there = name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : name;
    if (is_mask(there)) continue;
    const bool is_new = plain.emplace(std::move(there), tensor).second;
    NARROWCAST_CHECK_INPUT(is_new, path, ": tensor ", in_quotes(name), " occurs twice, with and without '", kPrefix,
                           "'");
  }
  const auto head = plain.find(kHead);
  if (head != plain.end()) {
    NARROWCAST_CHECK_INPUT(plain.contains(kTokenEmbedding) && are_equal(head->second, plain.at(kTokenEmbedding)), path,
                           ": tensor '", kHead, "' is not equal to '", kTokenEmbedding, "', as it is in GPT-2");
    plain.erase(head);
  }
  return plain;
}

models::StateDict with_positions_of(models::StateDict tensors, const models::StateDict& to) {
  at::Tensor& positions = tensors.at(kPositionEmbedding);
  positions = positions.slice(/*dim=*/0, /*start=*/0, to.at(kPositionEmbedding).size(0));
  return tensors;
}

models::ModelOptions gpt2_options(const std::string& path, const models::StateDict& tensors) {
  const at::Tensor& tokens = matrix(path, tensors, kTokenEmbedding);
  const at::Tensor& positions = matrix(path, tensors, kPositionEmbedding);
  return {{"layers", count_blocks(tensors)},
          {"width", tokens.size(1)},
          {"context", positions.size(0)},
          {"vocabulary_size", tokens.size(0)}};
}

}  // namespace narrowcast::files
