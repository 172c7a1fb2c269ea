// The state that a TorchScript module keeps between passes: its parameters and buffers, registered in a
// torch::nn::Module.
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

// The tensors are shared with the script, which holds them in its slots between passes. Buffers that the script's own
// code assigns (`self.average = ...`) are replaced by copies that no other slot shares: an assignment would end the
// sharing.
class ScriptState {
 public:
  // Registers the script's parameters and buffers in `module` under their names, with one holder module per submodule.
  // A tensor with several names is registered under the first. An expanded buffer, which cannot be written, is replaced
  // in the script by a copy. Messages call the script `name`. Throws c10::ValueError naming:
  // - a parameter that the code assigns, since its former tensor would no longer be trained;
  // - a parameter or buffer that is not dense or has a dtype that model files cannot hold (can_be_saved).
  ScriptState(const torch::jit::Module& script, torch::nn::Module& module, const std::string& name);

  // Every additional name of a tensor, with its first name.
  const std::map<std::string, std::string>& aliases() const { return aliases_; }

  // While a Pass exists, the script's code may assign buffers.
  class Pass {
   public:
    // Keeps a reference to `state`. Puts copies into the slots of assigned buffers: backward passes need the values
    // that the pass has read, unchanged.
    explicit Pass(const ScriptState& state);

    // Puts the registered tensors back into the slots.
    ~Pass();
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;

    // Copies the slots' tensors after a pass to the registered buffers. Throws a c10::ValueError that names the script
    // and the buffer if its shape or kind of numbers has changed.
    void keep() const;

   private:
    const ScriptState& state_;
  };

 private:
  // A buffer that the script's code assigns.
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
  std::set<Attribute> assigned_;  // by any method or hook of the script
  std::map<const at::TensorImpl*, std::string> names_;
  std::map<std::string, std::string> aliases_;
  std::vector<AssignedBuffer> buffers_;
};

}  // namespace narrowcast::models
