#include "models/registry.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <functional>
#include <map>

#include "models/char_gpt.h"
#include "models/mlp.h"
#include "models/reference/ddp_comm_hook_task.h"

namespace narrowcast::models {
namespace {

using Factory = std::function<std::shared_ptr<Model>(const nlohmann::json&)>;

const std::map<std::string, Factory>& factories() {
  static const std::map<std::string, Factory> table = {
      {"char_gpt", CharGpt::create},
      {"ddp_comm_hook_task", DdpCommHookTask::create},
      {"mlp", Mlp::create},
  };
  return table;
}

}  // namespace

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const auto& [name, factory] : factories()) {
    names.push_back(name);
  }
  return names;
}

std::shared_ptr<Model> create_model(const std::string& name, const nlohmann::json& options) {
  const auto entry = factories().find(name);
  TORCH_CHECK_VALUE(entry != factories().end(), "model: unknown name '", name,
                    "'; known: ", c10::Join(", ", model_names()));
  return entry->second(options);
}

}  // namespace narrowcast::models
