#include <narrowcast/models.h>

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <functional>
#include <map>

#include <narrowcast/char_gpt.h>
#include <narrowcast/mlp.h>
#include "models/ddp_comm_hook_task.h"

namespace narrowcast::models {
namespace {

struct Entry {
  std::function<std::shared_ptr<Model>(const ModelOptions&)> create;
  std::function<int64_t(const ModelOptions&)> count_parameters;
};

const std::map<std::string, Entry>& entries() {
  static const std::map<std::string, Entry> table = {
      {CharGpt::kName, {CharGpt::create, CharGpt::count_parameters}},
      {DdpCommHookTask::kName, {DdpCommHookTask::create, DdpCommHookTask::count_parameters}},
      {Mlp::kName, {Mlp::create, Mlp::count_parameters}},
  };
  return table;
}

const Entry& find(const std::string& name) {
  const auto entry = entries().find(name);
  TORCH_CHECK_VALUE(entry != entries().end(), "model: unknown name '", name,
                    "'; known: ", c10::Join(", ", model_names()));
  return entry->second;
}

}  // namespace

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const auto& [name, entry] : entries()) {
    names.push_back(name);
  }
  return names;
}

std::shared_ptr<Model> create_model(const std::string& name, const ModelOptions& options) {
  return find(name).create(options);
}

int64_t count_parameters(const std::string& name, const ModelOptions& options) {
  return find(name).count_parameters(options);
}

}  // namespace narrowcast::models
