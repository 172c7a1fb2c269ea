// muon_steps FOLDER...: takes steps of narrowcast::optim::Muon, for comparison with torch.optim.Muon.
//
// FOLDER/case.json: shapes of the matrices, steps, and options under PyTorch's names. FOLDER/numbers.bin: float32, the
// matrices and then the gradients of each step. The program writes FOLDER/matrices.bin: the matrices after each step.
#include <ATen/ATen.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <narrowcast/muon.h>

namespace narrowcast {
namespace {

at::Tensor read(std::ifstream& file, const std::vector<int64_t>& shape) {
  at::Tensor numbers = at::empty(shape);
  file.read(static_cast<char*>(numbers.mutable_data_ptr()), static_cast<std::streamsize>(numbers.nbytes()));
  return numbers;
}

optim::MuonOptions options_of(const nlohmann::json& json) {
  optim::MuonOptions options(json.at("lr").get<double>());
  options.weight_decay(json.at("weight_decay")).momentum(json.at("momentum")).nesterov(json.at("nesterov"));
  options.ns_steps(json.at("ns_steps")).eps(json.at("eps"));
  return options.adjust_lr_fn(optim::parse_adjust_lr(json.at("adjust_lr_fn"))).ns_dtype(at::kBFloat16);
}

void run(const std::string& folder) {
  std::ifstream case_file(folder + "/case.json");
  const auto test = nlohmann::json::parse(case_file);
  const auto shapes = test.at("shapes").get<std::vector<std::vector<int64_t>>>();
  std::ifstream numbers(folder + "/numbers.bin", std::ios::binary);
  std::vector<at::Tensor> matrices;
  for (const auto& shape : shapes) matrices.push_back(read(numbers, shape).requires_grad_());
  optim::Muon optimizer(matrices, options_of(test.at("options")));
  std::ofstream results(folder + "/matrices.bin", std::ios::binary);
  for (int64_t step = 0; step < test.at("steps").get<int64_t>(); ++step) {
    for (at::Tensor& matrix : matrices) matrix.mutable_grad() = read(numbers, matrix.sizes().vec());
    TORCH_CHECK(numbers.good(), "numbers.bin is too short");
    optimizer.step();
    for (const at::Tensor& matrix : matrices) {
      results.write(static_cast<const char*>(matrix.const_data_ptr()), static_cast<std::streamsize>(matrix.nbytes()));
    }
  }
}

}  // namespace
}  // namespace narrowcast

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) narrowcast::run(argv[i]);
  return 0;
}
