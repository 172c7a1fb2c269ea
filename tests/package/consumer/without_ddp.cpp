// The package's other components, used without DistributedDataParallel: operators, hooks and models. One process runs
// it.
//
//   ./without_ddp
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <narrowcast/char_gpt.h>
#include <narrowcast/hooks.h>
#include <narrowcast/linear.h>
#include <narrowcast/mlp.h>
#include <narrowcast/models.h>
#include <narrowcast/wire_format.h>

#include <iostream>
#include <string>
#include <vector>

namespace {

namespace models = narrowcast::models;

// Whether the numbers of a model return unchanged from a message of the hook int8.
bool send_numbers_of_an_mlp() {
  const auto format = narrowcast::hooks::wire_format_of("int8");
  const auto numel = models::count_parameters("mlp");
  if (!format) {
    return false;
  }
  const at::Tensor gradients = at::full({numel}, 127.0);  // The scale is 1, so that nothing is rounded.
  const at::Tensor bytes = narrowcast::encode(gradients, *format);
  std::cout << "the hook int8 sends " << numel << " numbers of an mlp as " << bytes.numel()
            << " bytes; all formats: " << narrowcast::wire_format_names() << '\n';
  return narrowcast::decode(bytes, *format, numel).equal(gradients);
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) {
    text += ' ' + name;
  }
  return text;
}

// A class of the library; create_model makes models by name. Whether the numbers of parameters agree.
bool classify() {
  models::Mlp mlp({.inputs = 4, .hidden = 8, .layers = 1, .classes = 3});
  const at::Tensor images = at::rand({5, 4});
  const at::Tensor classes = mlp.logits(images).argmax(1);
  std::cout << "an mlp has the options" << joined(models::Mlp::option_names()) << "; its loss for its own answers is "
            << mlp.forward({.inputs = images, .targets = classes}).item<float>() << '\n';
  const auto same_shape = models::Mlp::create(mlp.options());
  int64_t parameters = 0;
  for (const at::Tensor& parameter : same_shape->parameters()) {
    parameters += parameter.numel();
  }
  return parameters == models::linear_parameters(4, 8) + models::linear_parameters(8, 3);
}

// Whether the language models give logits for each position, and continue a prompt.
bool write_text() {
  models::Gpt gpt({.layers = 1, .heads = 2, .width = 16, .context = 8, .vocabulary_size = 10});
  const models::CharGpt small({.layers = 1, .vocabulary_size = 10});
  const auto by_name = models::CharGpt::create({{"layers", 1}, {"context", 8}, {"vocabulary_size", 10}});
  std::cout << "gpt has the options" << joined(models::Gpt::option_names()) << "; char_gpt is " << small.shape().width
            << " wide by default\n";
  const at::Tensor prompt = at::randint(10, {4}, at::kLong);
  const at::Tensor written = gpt.generate(prompt, {.count = 12}, at::detail::createCPUGenerator(/*seed=*/0));
  return gpt.logits(prompt.unsqueeze(0)).size(2) == 10 && written.size(0) == 12 && by_name->shape().context == 8;
}

}  // namespace

int main() { return send_numbers_of_an_mlp() && classify() && write_text() ? 0 : 1; }
