#include <narrowcast/hook_state.h>

#include <ATen/ops/full.h>

#include <narrowcast/errors.h>

namespace narrowcast::hooks {

at::Tensor int_tensor(int64_t value) { return at::full({}, value, at::kLong); }

int64_t int_of(const HookState& state, const std::string& name) {
  const auto found = state.find(name);
  NARROWCAST_CHECK_INPUT(found != state.end(), "the hook's state lacks '", name, "'");
  NARROWCAST_CHECK_INPUT(found->second.scalar_type() == at::kLong && found->second.numel() == 1, "the hook's state '",
                         name, "' is no integer");
  return found->second.item<int64_t>();
}

}  // namespace narrowcast::hooks
