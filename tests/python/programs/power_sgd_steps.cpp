// power_sgd_steps FOLDER...: runs steps of a PowerSGD hook on ranks that are threads, for comparison with PyTorch's.
//
// FOLDER/case.json: hook, options under PyTorch's names, world_size, steps, dtype ("float32" or "float64") and buckets,
// each the list of its parameters' sizes. FOLDER/gradients.bin: the numbers by step, rank and bucket. The program
// writes FOLDER/means.bin: the ranks' results, in the same order.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <narrowcast/hooks.h>
#include <narrowcast/wire_format.h>
#include "tests/hooks/all/parameters_bucket.h"
#include "tests/support/ranks.h"

namespace narrowcast {
namespace {

using Sizes = std::vector<int64_t>;
using Numbers = std::vector<at::Tensor>;  // By bucket.

struct Case {
  std::string hook;
  hooks::PowerSgdOptions options;
  int64_t world_size;
  int64_t steps;
  at::ScalarType dtype;
  std::vector<std::vector<Sizes>> buckets;
};

Case read_case(const std::string& folder) {
  std::ifstream file(folder + "/case.json");
  const auto json = nlohmann::json::parse(file);
  hooks::PowerSgdOptions options{.rank = json.at("matrix_approximation_rank").get<int64_t>(),
                                 .start = json.at("start_powerSGD_iter"),
                                 .min_rate = json.at("min_compression_rate"),
                                 .error_feedback = json.at("use_error_feedback"),
                                 .warm_start = json.at("warm_start"),
                                 .epsilon = json.at("orthogonalization_epsilon"),
                                 .seed = json.at("random_seed"),
                                 .batch = json.at("batch_tensors_with_same_shape"),
                                 .memory = hooks::parse_power_sgd_memory(json.at("memory").get<std::string>())};
  return {json.at("hook"),
          options,
          json.at("world_size"),
          json.at("steps"),
          json.at("dtype") == "float64" ? at::kDouble : at::kFloat,
          json.at("buckets")};
}

std::vector<at::Tensor> make_parameters(const std::vector<Sizes>& sizes, at::ScalarType dtype) {
  std::vector<at::Tensor> parameters;
  for (const Sizes& size : sizes) parameters.push_back(at::zeros(size, dtype));
  return parameters;
}

// One rank's steps; `gradients` and the result are indexed by step.
std::vector<Numbers> run_steps(const Case& test, const std::vector<Numbers>& gradients,
                               const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  const auto hook = hooks::create_comm_hook(test.hook, {.process_group = group, .power_sgd = test.options});
  std::vector<std::vector<at::Tensor>> parameters;
  for (const auto& sizes : test.buckets) parameters.push_back(make_parameters(sizes, test.dtype));
  std::vector<Numbers> means;
  for (const Numbers& step : gradients) {
    means.emplace_back();
    std::vector<c10::intrusive_ptr<c10::ivalue::Future>> futures;
    for (size_t index = 0; index < step.size(); ++index) {
      std::vector<at::Tensor> parts;
      int64_t begin = 0;
      for (const at::Tensor& parameter : parameters[index]) {
        parts.push_back(step[index].narrow(0, begin, parameter.numel()));
        begin += parameter.numel();
      }
      auto bucket = hooks::make_parameters_bucket(parameters[index], parts, index, step.size());
      futures.push_back(hook->runHook(bucket));
    }
    for (const auto& future : futures) {
      future->waitAndThrow();
      means.back().push_back(hook->parseHookResult(future->value()));
    }
  }
  return means;
}

int64_t numel_of(const std::vector<Sizes>& bucket) {
  int64_t numel = 0;
  for (const Sizes& sizes : bucket) numel += c10::multiply_integers(sizes);
  return numel;
}

void run(const std::string& folder) {
  const Case test = read_case(folder);
  std::ifstream file(folder + "/gradients.bin", std::ios::binary);
  std::vector<std::vector<Numbers>> gradients(test.world_size);  // By rank and step.
  for (int64_t step = 0; step < test.steps; ++step) {
    for (auto& of_rank : gradients) {
      of_rank.emplace_back();
      for (const auto& bucket : test.buckets) {
        const at::Tensor numbers = at::empty({numel_of(bucket)}, test.dtype);
        file.read(static_cast<char*>(numbers.mutable_data_ptr()), static_cast<std::streamsize>(numbers.nbytes()));
        of_rank.back().push_back(numbers);
      }
    }
  }
  TORCH_CHECK(file.good(), "gradients.bin is too short");
  std::vector<std::vector<Numbers>> means(test.world_size);
  testing::run_ranks(test.world_size, [&](int64_t rank, const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
    means[rank] = run_steps(test, gradients[rank], group);
  });
  std::ofstream out(folder + "/means.bin", std::ios::binary);
  for (int64_t step = 0; step < test.steps; ++step) {
    for (const auto& of_rank : means) {
      for (const at::Tensor& mean : of_rank[step]) {
        out.write(static_cast<const char*>(mean.const_data_ptr()), static_cast<std::streamsize>(mean.nbytes()));
      }
    }
  }
}

}  // namespace
}  // namespace narrowcast

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) narrowcast::run(argv[i]);
  return 0;
}
