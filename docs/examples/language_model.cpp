// Trains a small GPT over the bytes of a text, writes text with it, and stores its Linear layers in 8 bits.
//
//   narrowcast-run --standalone --nproc_per_node=2 ./language_model TEXT [char_gpt | gpt]
#include <ATen/CPUGeneratorImpl.h>
#include <narrowcast/linear.h>
#include <narrowcast/models.h>
#include <narrowcast/narrowcast.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>

#include <cstdint>
#include <exception>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

namespace {

namespace models = narrowcast::models;

constexpr int64_t kSteps = 150;
constexpr int64_t kContext = 32;
const models::ModelOptions kShape = {
    {"layers", 1}, {"heads", 2}, {"width", 32}, {"context", kContext}, {"vocabulary_size", 256}};

at::Tensor tokens_of(const char* file) {
  std::ifstream in(file, std::ios::binary);
  NARROWCAST_CHECK_INPUT(in.good(), "cannot read ", file);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(in), {}};
  NARROWCAST_CHECK_INPUT(bytes.size() > 100 * kContext, file, " is too short: ", bytes.size(), " bytes");
  return at::tensor(std::vector<uint8_t>(bytes.begin(), bytes.end())).to(at::kLong);
}

models::Batch random_batch(const at::Tensor& tokens, int64_t samples) {
  const at::Tensor windows = tokens.unfold(0, kContext + 1, 1);
  const at::Tensor chosen = windows.index_select(0, torch::randint(windows.size(0), {samples}, at::kLong));
  return {.inputs = chosen.narrow(1, 0, kContext), .targets = chosen.narrow(1, 1, kContext)};
}

void train(const std::shared_ptr<models::Model>& model, const at::Tensor& tokens,
           const narrowcast::ProcessGroupPtr& group) {
  narrowcast::DistributedDataParallel ddp(model, group,
                                          narrowcast::DdpOptions()
                                              .hook("int8")
                                              .wire({.node_size = 1})
                                              .static_graph(true)        // Each step uses all parameters once.
                                              .broadcast_buffers(false)  // The model has none.
                                              .init_sync(false));        // main() gives all ranks the same seed.
  torch::optim::AdamW optimizer(model->parameters());
  const narrowcast::LearningRateSchedule schedule({.peak = 1e-2, .schedule = narrowcast::parse_schedule_kind("wsd")},
                                                  kSteps);
  torch::manual_seed(group->getRank() + 1);  // Each rank draws different samples.
  model->regularize({.dropout = 0.05, .label_smoothing = 0.05});
  model->train();
  for (int64_t step = 0; step < kSteps; ++step) {
    ddp.zero_grad();
    ddp.backward(ddp.forward(random_batch(tokens, 16)));
    torch::nn::utils::clip_grad_norm_(model->parameters(), 1.0);
    narrowcast::set_learning_rate(optimizer, schedule.at(step));
    optimizer.step();
  }
  if (group->getRank() == 0) {
    std::cout << schedule.warmup_steps() << " steps of warm-up, " << schedule.decay_steps() << " of decay to "
              << schedule.minimum() << '\n';
  }
}

double loss_on(models::Model& model, const models::Batch& batch) {
  const torch::NoGradGuard no_grad;
  model.eval();
  return model.evaluate(batch).loss.item<double>();
}

std::string continue_text(models::Model& model, const std::string& prompt) {
  const at::Tensor tokens = at::tensor(std::vector<uint8_t>(prompt.begin(), prompt.end())).to(at::kLong);
  const auto next = model.next_token();  // Empty for a model that is not a language model.
  TORCH_CHECK_VALUE(next.has_value(), "the model does not generate text");
  const at::Tensor written = models::generate(*next, tokens, {.count = 40, .temperature = 0.7, .top_k = 20},
                                              at::detail::createCPUGenerator(/*seed=*/0));
  const int64_t* const begin = written.const_data_ptr<int64_t>();
  return {begin, begin + written.numel()};
}

// Returns the number of layers that are stored in 8 bits.
int64_t quantize(models::Model& model) {
  int64_t count = 0;
  for (const auto& module : model.modules()) {
    if (auto* const linear = module->as<models::LinearImpl>()) {
      linear->quantize_weight();
      count += linear->is_quantized() ? 1 : 0;
    }
  }
  return count;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    std::cerr << "usage: language_model TEXT [MODEL], where MODEL generates text and is one of";
    for (const std::string& name : models::model_names()) {
      std::cerr << ' ' << name;
    }
    std::cerr << '\n';
    return 2;
  }
  const std::string name = argc == 3 ? argv[2] : "char_gpt";
  try {
    const at::Tensor tokens = tokens_of(argv[1]);
    const auto env = narrowcast::WorkerEnv::from_environment();
    const narrowcast::ProcessGroupScope scope(env);
    torch::manual_seed(0);
    const auto model = models::create_model(name, kShape);  // A wrong name is an error that lists all names.
    scope.run([&] { train(model, tokens, scope.group()); });
    if (env.rank != 0) {
      return 0;
    }
    const models::Batch held_out = random_batch(tokens, 200);
    const double loss = loss_on(*model, held_out);
    std::cout << models::count_parameters(name, kShape) << " parameters, loss " << loss << '\n'
              << "KING" << continue_text(*model, "KING") << '\n';
    for (const auto& [alias, name_in_module] : model->aliases()) {
      std::cout << alias << " is " << name_in_module << '\n';  // Tied weights; these models register each once.
    }
    const int64_t layers = quantize(*model);
    std::cout << layers << " layers in 8 bits, loss " << loss_on(*model, held_out) << '\n';
  } catch (const c10::Error& error) {
    std::cerr << error.what_without_backtrace() << '\n';
    return 1;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
