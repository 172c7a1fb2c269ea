// A TorchScript language model of known loss: a table of counts that depend only on the last character.
#pragma once

#include <torch/csrc/jit/api/module.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

namespace narrowcast::testing {

// forward(tokens int64 [B, T]) -> table[tokens], float [B, T, table.size(1)].
inline torch::jit::Module table_module(const at::Tensor& table) {
  torch::jit::Module module("Table");
  module.register_parameter("table", table, /*is_buffer=*/false);
  module.register_attribute("training", c10::BoolType::get(), true);  // as in a module saved by Python
  module.define("def forward(self, tokens: Tensor) -> Tensor:\n    return self.table[tokens]\n");
  return module;
}

inline void save_script(const torch::jit::Module& module, const std::string& path,
                        const std::vector<std::string>& vocabulary) {
  module.save(path, {{"vocabulary.json", nlohmann::json(vocabulary).dump()}});
}

}  // namespace narrowcast::testing
