// gpt2_logits WEIGHTS HEADS TOKENS LOGITS: computes the logits of a gpt whose weights are read from WEIGHTS, for
// comparison with PyTorch's. TOKENS is a safetensors file with the tensor `tokens`, int64 [B, T]. The program writes
// LOGITS, a safetensors file with `logits`, float32 [B, T, vocabulary].
#include <ATen/ATen.h>

#include <string>

#include <narrowcast/gpt.h>
#include "trainer/train/files/model_file.h"
#include "trainer/train/files/safetensors.h"

int main(int, char** argv) {
  using namespace narrowcast;  // NOLINT(google-build-using-namespace)
  const files::InitialState initial = files::read_initial_state(argv[1], models::Gpt::kName);
  const auto model = models::Gpt::create(files::options_with(initial, {{"heads", std::stoll(argv[2])}}));
  files::load_initial_state(initial, *model);
  const at::NoGradGuard no_grad;
  const at::Tensor tokens = files::read_safetensors(argv[3]).tensors.at("tokens");
  files::write_safetensors(argv[4], {.tensors = {{"logits", model->logits(tokens)}}, .metadata = {}});
  return 0;
}
