// What a TorchScript module keeps from pass to pass: its parameters and buffers, as those of a torch::nn::Module.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>

#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace narrowcast::models {

// Whether model files (safetensors) can hold a tensor of the dtype. They cannot hold complex128, quantised types and
// the float8 types of AMD's GPUs (fnuz).
bool can_be_saved(at::ScalarType dtype);

// The tensors are shared with the script, whose slots hold them between passes. Only buffers that the script's own code
// assigns (`self.average = ...`) become copies, which no other slot shares: an assignment would part them.
class ScriptState {
 public:
  // Registers the script's parameters and buffers in `module` under their names, in modules that do nothing but hold
  // them; of a tensor with several names under the first. An expanded buffer, which cannot be written, is replaced in
  // the script by a copy. `name` is the script's for messages. Throws c10::ValueError naming a parameter that the code
  // assigns: what it was would be trained no more. Throws c10::ValueError naming a parameter or buffer that is not
  // dense or has a dtype that model files cannot hold (can_be_saved).
  ScriptState(const torch::jit::Module& script, torch::nn::Module& module, const std::string& name);

  // Every further name of a tensor, with the first.
  const std::map<std::string, std::string>& aliases() const { return aliases_; }

  // For its time, the script's code may assign buffers.
  class Pass {
   public:
    // Keeps a reference. The slots of those buffers get copies: backward passes need what the pass has read unchanged.
    explicit Pass(const ScriptState& state);

    // The slots get the registered tensors again.
    ~Pass();
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;

    // Puts what the pass left in the slots into the registered buffers. Throws c10::ValueError naming the script and a
    // buffer that has become one of another shape or kind of numbers.
    void keep() const;

   private:
    const ScriptState& state_;
  };

 private:
  // A buffer that code assigns.
  struct AssignedBuffer {
    torch::jit::ObjectPtr object;
    size_t slot = 0;
    std::string name;
    at::Tensor registered;
  };
  using Attribute = std::pair<const c10::ClassType*, std::string>;

  void find_assigned(const torch::jit::Block& block);
  void register_tensors(torch::nn::Module& module, const torch::jit::Module& script, const std::string& prefix);
  at::Tensor own_tensor(const torch::jit::Module& script, const std::string& attribute, const std::string& name);
  bool is_new(const at::Tensor& tensor, const std::string& name);
  void check_can_be_saved(const char* kind, const std::string& name, const at::Tensor& tensor) const;

  const std::string name_;
  std::set<Attribute> assigned_;  // by all methods and hooks of the script
  std::map<const at::TensorImpl*, std::string> names_;
  std::map<std::string, std::string> aliases_;
  std::vector<AssignedBuffer> buffers_;
};

}  // namespace narrowcast::models
