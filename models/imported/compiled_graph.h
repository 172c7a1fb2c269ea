// A graph that AOTInductor has compiled, loaded into this process.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace torch::inductor {
class AOTIModelContainerRunner;
}

namespace narrowcast::models {

// The files of a compiled graph.
struct CompiledFiles {
  std::string library;    // the shared library
  std::string operators;  // JSON: the operators that it calls through LibTorch's dispatcher; empty if there are none
};

// Called with a gradient as soon as it is complete. `parameter` is its number among the trained parameters of a
// package. After the call the graph may use the gradient's memory for something else.
using OnGradient = std::function<void(int64_t parameter, const at::Tensor& gradient)>;

// A graph reports gradients by an operator, which is registered here:
//
//   narrowcast::gradient_ready(Tensor gradient, int parameter) -> Tensor
//
// Its result is an empty tensor, which is one of the graph's outputs: without it, a compiler would remove the call.
//
// LibTorch's AOTIModelPackageLoader is not used: it would unpack a package into a folder of /tmp that stays when the
// process is killed.
class CompiledGraph {
 public:
  // Loads the library from a temporary folder (trainer/base/files/temporary_folder.h), which is gone when the
  // constructor returns. Messages begin with `name`. Throws c10::ValueError if the library cannot be loaded.
  CompiledGraph(const std::string& name, const CompiledFiles& files);
  ~CompiledGraph();
  CompiledGraph(const CompiledGraph&) = delete;
  CompiledGraph& operator=(const CompiledGraph&) = delete;

  // Returns the graph's outputs. The code checks neither shapes nor dtypes nor strides: the caller must. Equal inputs
  // and numbers of threads give equal bits. Rethrows an exception of `on_gradient` once the graph has ended. Throws
  // c10::ValueError naming the graph if the code reports an error, whose text AOTInductor prints on stderr.
  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs, const OnGradient& on_gradient = {}) const;

 private:
  std::string name_;
  std::unique_ptr<torch::inductor::AOTIModelContainerRunner> runner_;
};

}  // namespace narrowcast::models
