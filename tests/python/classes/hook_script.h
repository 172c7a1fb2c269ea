// A script that makes, uses and closes a torch.classes.narrowcast.CommHook.
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/csrc/jit/api/compilation_unit.h>

#include <memory>
#include <string>

#include "tests/python/classes/script.h"

namespace narrowcast::classes {

inline constexpr const char* kHookScript = R"(
def make(name: str, options: Dict[str, Any], group: str) -> CommHook:
    return CommHook(name, options, group)

def average(hook: CommHook, buffer: Tensor, index: int, is_last: bool,
            parameters: List[Tensor]):
    return hook.run(buffer, index, is_last, parameters)

def sent(hook: CommHook) -> int:
    return hook.payload_bytes_sent()

def nodes(hook: CommHook) -> str:
    return hook.nodes()

def state(hook: CommHook, names: List[str], parameters: List[Tensor]) -> Dict[str, Tensor]:
    return hook.state(names, parameters)

def load(hook: CommHook, states: List[Dict[str, Tensor]], names: List[str],
         parameters: List[Tensor]) -> None:
    hook.load_state(len(states), states, states[0], names, parameters)

def close(hook: CommHook) -> str:
    hook.close()
    return hook.name()
)";

// The functions above.
inline torch::jit::CompilationUnit& hook_script() {
  static const std::shared_ptr<torch::jit::CompilationUnit> unit = compile(kHookScript);
  return *unit;
}

// The class's object. `given`: options by name.
inline c10::IValue make_hook(const std::string& name, const GivenOptions& given, const std::string& group) {
  return hook_script().run_method("make", name, to_option_dict(given), group);
}

}  // namespace narrowcast::classes
