#include <narrowcast/models.h>

#include <c10/util/Exception.h>

#include <utility>

#include "models/imported/package_model.h"
#include "models/table/model_table.h"

namespace narrowcast::models {
namespace {

// Throws if `value` is out of range, or above 0 for a model that does not support the share. `lacks_it` is the name of
// such a model, or null.
void check_share(const char* name, double value, const std::string* lacks_it) {
  TORCH_CHECK_VALUE(value >= 0 && value < 1, name, ": must be at least 0 and below 1, but is ", value);
  TORCH_CHECK_VALUE(value == 0 || lacks_it == nullptr, name, ": has no effect with the model ", *lacks_it);
}

}  // namespace

void Model::set_layer_gate(LayerGate gate) {
  TORCH_CHECK_VALUE(!gate || announces_layers(), "model ", name(), " does not announce its layers");
  layer_gate_ = std::move(gate);
}

void Model::regularize(const Regularization& regularization) {
  check_share("dropout", regularization.dropout, has_dropout() ? nullptr : &name());
  check_share("label_smoothing", regularization.label_smoothing, has_label_smoothing() ? nullptr : &name());
  regularization_ = regularization;
}

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const ModelRow& row : model_rows()) {
    names.push_back(row.name);
  }
  return names;
}

std::shared_ptr<Model> create_model(const std::string& name, const ModelOptions& options) {
  return model_row(name).create(options);
}

int64_t count_parameters(const std::string& name, const ModelOptions& options) {
  return model_row(name).count_parameters(options);
}

std::shared_ptr<Model> load_package(const std::string& path) {
  return std::make_shared<PackageModel>(read_package(path), path);
}

}  // namespace narrowcast::models
